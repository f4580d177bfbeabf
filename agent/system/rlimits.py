"""The resource limits of this process, which the operating system enforces. Windows has none."""

from contextlib import suppress


def limit_worker(memory: int, seconds: int) -> None:
    """Limit this process to `memory` bytes of data and `seconds` of processor time, and forbid it to write files.

    Does nothing on a system without such limits.
    """
    try:
        import resource
    except ImportError:
        return
    # The hard limit of processor time is later, so that the first signal identifies the time limit.
    wanted = {
        resource.RLIMIT_DATA: (memory, memory),
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for name, (soft, hard) in wanted.items():
        most = resource.getrlimit(name)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(name, (soft, hard))


def raise_open_files(wanted: int) -> int:
    """Raise the limit of open files to the system's maximum, or to `wanted` if there is none.

    Return how many files can be open now, or `wanted` if the system has no limit.
    """
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        most = wanted if hard == resource.RLIM_INFINITY else hard
        with suppress(ValueError, OSError):  # macOS refuses values above a limit of its kernel
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else soft
