"""The settings of the app, read once from `configs/app.toml` and the environment, which takes precedence."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from agent.errors import ConfigError, without_logins
from agent.models.families import LONGEST_NAME
from agent.system.project import FILES, HOME
from agent.system.toml_file import CLOSED, NUMBER, TomlFile, check_environment, must

MOUNT = Path("/data")
"""The folder where the hub mounts storage that survives a restart."""
MOUNTS = Path("/proc/self/mountinfo")
FLEETING = "Chats here are deleted when the Space restarts."
LOGIN = ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
"""The variables that `hf_oauth: true` sets. Logging in needs all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A Space. `id` is owner/name, and `host` its host name, "" if unknown.

    `storage` is the folder that survives a restart, None if there is none. `login`: visitors can log in to the hub.
    `zero_gpu`: the hub lends it a GPU for each call of a function.
    """

    id: str
    host: str = ""
    storage: Path | None = None
    login: bool = False
    zero_gpu: bool = False


def find_space(env: Mapping[str, str], mounts: Path = MOUNTS) -> Space | None:
    """Return the Space that `env` describes, or None if this is not a Space."""
    if not env.get("SPACE_ID"):
        return None
    kept = env.get("PERSISTANT_STORAGE_ENABLED", "").lower() in ("1", "true") or _is_mounted(mounts)
    return Space(
        id=env["SPACE_ID"],
        host=env.get("SPACE_HOST", "").split(",")[0].strip(),  # with a custom domain there are two
        storage=MOUNT if kept else None,
        login=all(env.get(name) for name in LOGIN),
        zero_gpu=env.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"),
    )


def _is_mounted(mounts: Path) -> bool:
    """Return True if storage is mounted at `MOUNT`. The VOLUME of an image does not count: it is lost at a restart."""
    try:
        lines = [line.split(" ") for line in mounts.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return False
    # The fourth field is the root within the mounted file system, the fifth the mount point (man 5 proc).
    return any(len(line) > 4 and line[4] == str(MOUNT) and "/volumes/" not in line[3] for line in lines)


ROOT = HOME
OWN_SEARCH = "own"
"""The value of `search` for models whose provider searches."""


def _split(value: Any) -> Any:
    return value.replace(",", " ").split() if isinstance(value, str) else value


def _with_version(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1") + "/v1"


Count = Annotated[int, NUMBER, Field(ge=0)]
Positive = Annotated[int, NUMBER, Field(ge=1)]
Percent = Annotated[int, NUMBER, Field(ge=0, le=100)]
Amount = Annotated[float, NUMBER, Field(ge=0)]
Period = Annotated[float, NUMBER, Field(gt=0)]
Port = Annotated[int, NUMBER, Field(ge=0, le=65535)]
StoreUrl = Annotated[
    str,
    must(
        "be memory, sqlite, json, json:folder or a URL such as sqlite:///path, redis://host:6379/0 or "
        "postgresql://user:password@host/database",
        r"(sqlite|memory|json):?|sqlite:///.+|json:.+|(postgres(ql)?|rediss?|unix)://.+",
    ),
]
MediaUrl = Annotated[
    str,
    must("be a place such as file:folder, memory: or s3://bucket/folder", r"|file:.+|memory:.*|[a-z][a-z0-9+.-]*://.+"),
]
SearchPlace = Annotated[str, must('be "own", or the address of a SearXNG server', r"|own|https?://[^@\\s]+")]
# The address becomes words of a header, as an origin does.
PythonPlace = Annotated[
    str, must("be a folder, or an address such as https://cdn.example.org/pyodide/", r"(?!\w+:).*|https://[\w.:/~+-]+")
]
Names = tuple[str, ...]
ProjectPath = Annotated[Path, AfterValidator(lambda path: ROOT / path.expanduser())]
# Each origin becomes one word of a header. A space or a semicolon in it would begin another word.
Origin = Annotated[str, must("be an origin such as https://example.org", r"https?://[A-Za-z0-9.*-]+(:\d+)?")]
HostName = Annotated[
    str, must("be a host name such as chat.example.org, without a port", r"[a-z0-9.-]+|\[[0-9a-f:]+\]")
]
HostNames = Annotated[tuple[HostName, ...], BeforeValidator(_split)]
# Refuse a host that could never match, because its owner would believe that it works.
HostWithPort = Annotated[
    str, must("be a host with its port, such as wiki.intranet:443", r"([a-z0-9.-]+|\[[0-9a-f:]+\]):\d+")
]
RootPath = Annotated[
    str, must("be a path such as /chat or a whole URL", r"(/|https?://).*"), AfterValidator(lambda it: it.rstrip("/"))
]
ServerUrl = Annotated[str, must("start with http:// or https://", r"https?://.*"), AfterValidator(_with_version)]


@dataclass(frozen=True, kw_only=True)
class _LocalSection:
    __pydantic_config__ = CLOSED

    cache_dir: ProjectPath = ROOT / ".cache"
    downloads: bool = True
    wait_seconds: Amount = 5.0
    answers: Annotated[int, NUMBER, Field(ge=1)] = 4


@dataclass(frozen=True, kw_only=True)
class LocalSettings(_LocalSection):
    """The model to serve on this machine, and the folder for weights.

    `vllm_base_url` is the URL of a running server; nothing is then downloaded or started. `vllm_model` is a model to
    start `vllm serve` with. `local_model` is the user's own GGUF file. `downloads` False uses only files on disk.
    llama.cpp generates up to `answers` answers at once; further requests wait in a queue. `finds_servers`: an Ollama or
    an LM Studio at its usual port is used, too.
    """

    vllm_base_url: str | None = None
    vllm_api_key: str | None = field(default=None, repr=False)
    vllm_model: str | None = None
    local_model: Path | None = None
    finds_servers: bool = True


@dataclass(frozen=True, kw_only=True)
class _PublicLimits:
    __pydantic_config__ = CLOSED

    messages: Count = 10
    messages_per_address: Count = 30
    messages_in_all: Count = 120
    answers_each: Count = 2
    answers_per_address: Count = 4
    answers: Count = 8
    keep_days: Count = 30
    stored_mb_per_visitor: Count = 500
    stored_mb_of_guests: Count = 1000
    stored_mb_in_all: Count = 10_000
    stored_disk_percent: Percent = 50
    models: Names = ()
    links: bool = False
    api: bool = False
    search: bool = False


@dataclass(frozen=True, kw_only=True)
class _PublicSection(_PublicLimits):
    on: bool = False
    public_tools: Names = ()


@dataclass(frozen=True, kw_only=True)
class PublicSettings(_PublicLimits):
    """The limits of a page that is open to everybody.

    `messages`, `messages_per_address` and `messages_in_all` are the most messages per minute from one visitor, from one
    network address and from all visitors. The same limits apply separately to pictures fetched from links.
    `answers_each`, `answers_per_address` and `answers` limit concurrent answers in the same way. All visitors without
    a cookie count as one visitor. `tools` are the allowed tools. `keys` allows visitors to enter their own API keys.
    `models` are the hosted models that visitors can use with the owner's keys; models on this machine or at the
    configured server need no entry. A conversation is deleted `keep_days` after its last message, 0 for never.
    `links` allows read-only links to chats, `api` the routes below `/v1`, and `search` the search in the web, each of
    whose searches and pages counts as a picture from a link does.

    `stored_mb_...` limit the stored text and files of one visitor with a cookie, of all guests together, and of all
    visitors. All together also cannot take more than `stored_disk_percent` of the free disk.
    """

    keys: bool = True
    tools: Names = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """The limits for attached files that are not sent yet. A MB is a million bytes.

    `mb_of_guests` is for all visitors without a cookie together, because they cannot be told apart. `mb_in_all` and
    `disk_percent` of the free disk are for all visitors; the smaller one applies. Unsent files are removed after
    `minutes`.
    """

    __pydantic_config__ = CLOSED

    files_per_request: Count = 16
    mb_per_request: Amount = 100.0
    mb_per_visitor: Amount = 200.0
    mb_of_guests: Amount = 400.0
    mb_in_all: Amount = 2000.0
    disk_percent: Annotated[float, NUMBER, Field(ge=0, le=100)] = 50.0
    minutes: Amount = 45.0


@dataclass(frozen=True, kw_only=True)
class _ServerSection:
    __pydantic_config__ = CLOSED

    title: str = "Switchboard"
    host: str = "127.0.0.1"
    port: Port = 7860
    grace_seconds: Amount = 60.0
    drain_seconds: Amount = 10.0
    key_seconds: Amount = 180.0
    max_upload_bytes: Count = 20 * 1024 * 1024
    hosts: HostNames = ()
    framed_by: tuple[Origin, ...] = ()
    fetch_from: tuple[HostWithPort, ...] = ()
    python: PythonPlace = ""


@dataclass(frozen=True, kw_only=True)
class _HistorySection:
    __pydantic_config__ = CLOSED

    store: StoreUrl = field(default="sqlite", repr=False)
    data_dir: ProjectPath = ROOT / "data"
    media: MediaUrl = field(default="", repr=False)
    guest_hours: Period = 24.0
    keep_days: Amount = 0.0
    link_days: Amount = 30.0
    ratings: Annotated[str, must("name a file in data_dir", r"[\w.-]*")] = ""
    ratings_dataset: Annotated[str, must('be a dataset, as "owner/name"', r"([\w.-]+/[\w.-]+)?")] = ""
    housekeeping_minutes: Period = 10.0


@dataclass(frozen=True, kw_only=True)
class _AgentSection:
    __pydantic_config__ = CLOSED

    system_prompt: str | None = None
    tools: Names = ()
    titles: bool = False
    artifacts: bool = True
    search: SearchPlace = ""
    summaries: Annotated[str, must('be "offer", "auto" or "off"', "offer|auto|off")] = "offer"
    embeddings: str = field(default="", repr=False)
    speech: str = field(default="", repr=False)
    speech_voice: str = ""
    max_steps: Positive = 12
    retries: Count = 3
    run_seconds: Period = 600.0
    tool_seconds: Period = 60.0


@dataclass(frozen=True, kw_only=True)
class Settings(_ServerSection, _HistorySection, _AgentSection):
    """All settings of the app. Times are in seconds, sizes in bytes.

    `hosts` are the host names of the page. If there are any, or if `host` is a loopback address, requests for other
    names are refused, except for this machine's own names. `framed_by` are origins such as "https://example.org" that
    can show the page in a frame. `fetch_from` are hosts such as "wiki.intranet:8080" that pictures can be fetched from
    although they are not on the public internet; it has no effect if `public` is set. `upload_dir` holds files until
    they are sent, None for a folder in `data_dir`.

    `python` is the folder of Pyodide's files, or their address on another site, with which browsers run Python code of
    chats. "" is none.

    `store` is the URL of the history store, see `agent.history.open_store`, and `media` that of the place of attached
    files, see `agent.files.places`; "" is a folder in `data_dir`. Both can hold a password.

    `embeddings` names what makes vectors for the search in long documents: "provider:model", or the URL of a server,
    see `agent.providers.connection.connect_embedder`. "" is none. It can hold a password.

    `speech` names in the same way what reads answers aloud with the route /v1/audio/speech, and `speech_voice` its
    voice; "" is the server's choice. Without `speech`, the browsers of visitors read.

    With `artifacts`, large models are told what the page can show beside the chat.

    `search` lets models use the web: the URL of a SearXNG server for all that call tools, "own" for those whose
    provider searches, or "" for none.

    With `titles`, the model writes the titles of conversations, unless `public` is set. `summaries` says who lets it
    summarize the first turns of a chat that fills the model's window: the visitor, the app, or nobody.

    `system_prompt` can contain `{model}` and `{date}`. None: a default with both. "": no system prompt.

    A conversation of a visitor without a cookie is deleted `guest_hours` after its last message, any other one
    `keep_days` after it, 0 for never. If `public` is set, its `keep_days` replaces this one.

    A read-only link to a chat works for `link_days` unless its maker chooses otherwise, 0 for as long as the chat is
    kept.

    Programs need the `api_key` for the routes below `/v1`. None: any key, or none.

    An answer that nobody watches for `grace_seconds` is cancelled if `public` is set, and finished otherwise.
    """

    local: LocalSettings
    uploads: UploadSettings = UploadSettings()
    public: PublicSettings | None = None
    space: Space | None = None
    share: bool = False
    root_path: str = ""
    upload_dir: Path | None = None
    api_key: str | None = field(default=None, repr=False)

    @property
    def retention_days(self) -> float:
        """Days that conversations are kept after their last message, 0 for ever. It does not apply to guests."""
        return self.public.keep_days if self.public else self.keep_days

    @property
    def has_login(self) -> bool:
        """True if this is a Space whose visitors can log in to Hugging Face."""
        return self.space is not None and self.space.login

    @property
    def loses_history_on_restart(self) -> bool:
        """True if this is a Space that loses its conversations when it restarts."""
        if self.space is None or self.store.startswith(("postgres", "redis")):  # kept on another machine
            return False
        storage = self.space.storage
        return self.is_in_memory or storage is None or not self.data_dir.is_relative_to(storage)

    @property
    def media_url(self) -> str:
        """The URL of the place of attached files. The path of a folder is absolute."""
        if not self.media:
            return f"file:{self.data_dir / 'media'}"
        protocol, _, rest = self.media.partition(":")
        return f"file:{ROOT / Path(rest.removeprefix('//')).expanduser()}" if protocol == "file" else self.media

    @property
    def is_in_memory(self) -> bool:
        """True if conversations are kept in the memory of the process alone."""
        return self.store.startswith("memory")


@dataclass(frozen=True, kw_only=True)
class _SettingsFile:
    """The sections of the file."""

    __pydantic_config__ = CLOSED

    server: _ServerSection = _ServerSection()
    history: _HistorySection = _HistorySection()
    uploads: UploadSettings = UploadSettings()
    agent: _AgentSection = _AgentSection()
    public: _PublicSection = _PublicSection()
    local: _LocalSection = _LocalSection()


class _LocalVariables(BaseModel):
    """The variables that take precedence over the settings of these names in [local]."""

    model_config = ConfigDict(defer_build=True)

    cache_dir: ProjectPath | None = Field(None, alias="SWITCHBOARD_CACHE")
    vllm_base_url: ServerUrl | None = Field(None, alias="VLLM_BASE_URL")
    vllm_api_key: str | None = Field(None, alias="VLLM_API_KEY", repr=False)
    vllm_model: str | None = Field(None, alias="MODEL", max_length=LONGEST_NAME)
    local_model: Annotated[Path, AfterValidator(Path.expanduser)] | None = Field(None, alias="LOCAL_MODEL")


class _Variables(_LocalVariables):
    """These and the variables that take precedence over other settings."""

    host: str | None = Field(None, alias="GRADIO_SERVER_NAME")
    port: Port | None = Field(None, alias="GRADIO_SERVER_PORT")
    hosts: HostNames | None = Field(None, alias="SWITCHBOARD_HOSTS")
    root_path: RootPath | None = Field(None, alias="GRADIO_ROOT_PATH")
    data_dir: ProjectPath | None = Field(None, alias="SWITCHBOARD_DATA")
    upload_dir: ProjectPath | None = Field(None, alias="GRADIO_TEMP_DIR")
    store: StoreUrl | None = Field(None, alias="SWITCHBOARD_STORE", repr=False)
    media: MediaUrl | None = Field(None, alias="SWITCHBOARD_MEDIA", repr=False)
    share: bool | None = Field(None, alias="SHARE")
    gradio_share: bool | None = Field(None, alias="GRADIO_SHARE")
    embeddings: str | None = Field(None, alias="EMBEDDINGS", repr=False)
    search: SearchPlace | None = Field(None, alias="SWITCHBOARD_SEARCH")
    speech: str | None = Field(None, alias="SPEECH", repr=False)
    api_key: str | None = Field(None, alias="SWITCHBOARD_API_KEY", repr=False)


class _WithoutLogins(logging.Formatter):
    """Writes no user and password of a URL. HTTP clients log whole URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return without_logins(super().format(record))


def start_logging(level: str, layout: str = logging.BASIC_FORMAT) -> None:
    """Log from LOG_LEVEL on, by default from `level` on, to the standard error output."""
    handler = logging.StreamHandler()
    handler.setFormatter(_WithoutLogins(layout))
    logging.basicConfig(level=os.environ.get("LOG_LEVEL", level), handlers=[handler])


_from_file = set[str]()
"""The names of the variables that come from a file .env."""


def read_env_file(path: Path = Path(".env")) -> None:
    """Set the variables of this file that the environment lacks. Raises `ConfigError` if it cannot be read.

    Only programs that run in the owner's folder call this: in any other folder, such a file could send keys elsewhere.
    """
    if not path.is_file():
        return
    from dotenv import load_dotenv  # late, because the package alone does not need it

    before = {*os.environ}
    try:
        load_dotenv(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path.absolute()} cannot be read: {getattr(error, 'strerror', '') or 'it is no UTF-8'}"
        ) from error
    _from_file.update({*os.environ} - before)


def given_environment() -> dict[str, str]:
    """Return the environment without what `read_env_file` has added to it: a new start reads the file anew."""
    return {name: value for name, value in os.environ.items() if name not in _from_file}


def load_settings(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Read `path`, else the file in `SWITCHBOARD_CONFIG`, else `configs/app.toml`. The environment takes precedence.

    Raises `ConfigError` with the name of each wrong setting and its line in the file.
    """
    path = path or Path(env.get("SWITCHBOARD_CONFIG") or FILES / "configs" / "app.toml")
    source = TomlFile(path, optional=True)
    file = source.check(_SettingsFile, source.table)
    given = check_environment(_Variables, env).model_dump(exclude_none=True)
    given["share"] = share = given.pop("gradio_share", False) or given.get("share", False)
    space = find_space(env)
    values, local = {**vars(file.server), **vars(file.history), **vars(file.agent)}, dict(vars(file.local))
    if space:  # its proxy connects from outside the container, and only its storage survives a restart
        values["host"] = "0.0.0.0"
        if space.storage:
            values["data_dir"], local["cache_dir"] = space.storage, space.storage / "cache"
    if env.get("SWITCHBOARD_OFFLINE", "") not in ("", "0"):
        local["downloads"] = False
    local |= {name: given.pop(name) for name in _LocalVariables.model_fields if name in given}
    is_public = bool(file.public.on or share or space)  # whose visitors must not find more of this machine
    return Settings(
        local=LocalSettings(**local, finds_servers=not is_public),
        uploads=file.uploads,
        public=_public(file.public, keys=not share) if is_public else None,
        space=space,
        **{**values, **given},
    )


def _public(section: _PublicSection, *, keys: bool) -> PublicSettings:
    limits = {one.name: getattr(section, one.name) for one in fields(_PublicLimits)}
    return PublicSettings(keys=keys, tools=section.public_tools, **limits)
