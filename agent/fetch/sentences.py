"""The sentences about requests that the guard refuses or that fail, by name."""

from functools import partial

from agent.errors import InputError, localized_error

SENTENCES = {
    "link_status": "{host} answered with status {status}.",
    "link_slow": "{host} took longer than {seconds:g} s.",
    "link_failed": "The connection to {host} failed: {error}.",
    "link_request": "The request for {host} is none that HTTP can carry.",
    "link_answer": "{host} did not answer as a web server should: {error}.",
    "link_redirects": "{host} was reached after more than {most} redirects.",
    "link_port": "Port {port} of {host} is not asked; the ports that are: {known}.",
    "link_private": "{host} is not on the public internet, so nothing is fetched from it.",
    "link_long": "The web address is longer than {most} characters.",
    "link_blank": "The web address has a blank, a backslash or a control character in it.",
    "link_none": "This is not a web address: {error}.",
    "link_scheme": "A web address begins with http:// or https:// and the name of a host.",
    "link_user": "A web address with a user name or a password in it is not fetched.",
    "link_redirect": "{host} redirects to what is no web address.",
    "link_large": "What {host} gives is larger than {most:,} bytes.",
    "link_coding": "{host} compresses its answer by {coding}, which was not asked for.",
    "link_damaged": "{host} sent compressed data that is broken.",
    "link_cut": "{host} broke off its compressed answer.",
    "link_no_host": "There is no host named {host}.",
    "link_no_picture": "{host} gave {kind}, which is no picture.",
    "link_kind": "{host} gave {kind}; wanted is {wanted}.",
}

refused = partial(localized_error, InputError, SENTENCES)
