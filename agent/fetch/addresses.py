"""Decides which addresses belong to hosts on the public internet. Pure: looks nothing up."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_NO_HOST_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private, as are 172.16 and 192.168
            "100.64.0.0/10",  # carriers' address translation; a cloud's metadata lies in it
            "127.0.0.0/8",  # this machine
            "168.63.129.16/32",  # a cloud's own channel to its machines, at an address that looks public
            "169.254.0.0/16",  # this link, with the metadata of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation, as are 198.51.100 and 203.0.113
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)
_HOSTS_V6 = IPv6Network("2000::/3")
"""All addresses that were ever given to hosts. Mapped, translated and NAT64 addresses lie outside."""
_NO_HOST_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, such as Teredo
            "2001:db8::/32",  # documentation, as is 3fff
            "2002::/16",  # 6to4
            "3fff::/20",
        ),
    )
)
_ISATAP = (bytes.fromhex("00005efe"), bytes.fromhex("02005efe"))
"""The bytes in front of the IPv4 address in an ISATAP address."""


def is_public(address: Address) -> bool:
    """Return True if this is the address of one host on the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NO_HOST_V4)
    if address.packed[8:12] in _ISATAP or address not in _HOSTS_V6:
        return False
    return not any(address in network for network in _NO_HOST_V6)
