"""Settings: overrides (the command line) over `FENCEPOST_*` over a TOML file over the defaults.

A name that is not a setting is an error that says which one was probably meant; a bad value is one line that names the
variable, the value and what is allowed. Values of secrets are never shown, neither by `repr` nor in an error.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

PREFIX = "FENCEPOST_"
_IGNORED = "FENCEPOST_TEST_"  # read by the tests alone
_KAFKA = "FENCEPOST_KAFKA__"

# What Kubernetes puts into every pod of a namespace that has a Service called fencepost or fencepost-…: not settings.
_SERVICE_NAME = re.compile(r"^FENCEPOST_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")
_SERVICE_URL = re.compile(r"^(tcp|udp|sctp)://[^/]+:\d+$")

_SECRET = re.compile(r"password|passphrase|secret|jaas|oauthbearer\.config|\.pem$|token$", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
_KEYWORD_PASSWORD = re.compile(r"(password\s*=\s*)('[^']*'|[^\s&]+)", re.IGNORECASE)

# Properties on which the promise rests, or which have a setting of their own: never passed through.
_OWN = {
    "acks": "it is always `all`",
    "request.required.acks": "it is always `all`",
    "enable.idempotence": "it is always on",
    "enable.auto.commit": "offsets follow the outcomes",
    "enable.auto.offset.store": "offsets follow the outcomes",
    "bootstrap.servers": "set FENCEPOST_KAFKA_BOOTSTRAP",
    "metadata.broker.list": "set FENCEPOST_KAFKA_BOOTSTRAP",
    "group.id": "set FENCEPOST_GROUP_ID",
    "group.instance.id": "set FENCEPOST_GROUP_INSTANCE_ID",
    "group.protocol": "set FENCEPOST_GROUP_PROTOCOL",
}


class SettingsError(ValueError):
    """A setting is unknown, missing or has a value that is not allowed; the text is one line."""


def _topic(name: str) -> str:
    if name in (".", "..") or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        raise ValueError("must be a topic name: 1 to 249 letters, digits, `.`, `_`, `-`")
    return name


Seconds = Annotated[float, Field(allow_inf_nan=False)]
Topic = Annotated[str, AfterValidator(_topic)]
Name = Annotated[str, Field(min_length=1, max_length=255)]


class Settings(BaseSettings):
    """Everything that can be set; field names are the environment's names without `FENCEPOST_`, in lower case.

    Raises:
        SettingsError: for a name that is not a setting and for a value that is not allowed.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_nested_max_split=1,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    kafka_bootstrap: Annotated[str, Field(min_length=1)] = "localhost:9092"
    """Brokers to ask first, `host:port`, comma-separated."""
    kafka: dict[str, str | SecretStr] = {}
    """librdkafka properties, passed through to every client: `FENCEPOST_KAFKA__SASL_MECHANISM` is `sasl.mechanism`; in
    TOML `[kafka]` with `sasl.mechanism = "…"`. An underscore always stands for a dot: the few properties whose name has
    an underscore of its own (`ssl_ca`, `ssl_certificate`, `ssl_key`) cannot be set as text anyway."""
    ledger_dsn: SecretStr | None = None
    """`postgresql://user:password@host:port/database`."""

    group_id: Name = "fencepost"
    group_protocol: Literal["classic", "consumer"] = "classic"
    """`consumer` is KIP-848 and needs Kafka 4.0 or newer."""
    group_instance_id: Name | None = None
    """Static membership (KIP-345): one name for each worker, kept through its restarts."""
    ordering: Literal["unordered", "key", "partition"] = "unordered"
    """`key`: one call of a node at a time, in order; `partition`: one call of a partition at a time, in order."""
    default_org: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Unset: a call of an unknown execution is rejected. Set (single tenant): it is opened under this org."""

    dispatch_topic: Topic = "tool.dispatch"
    outcome_topic: Topic = "tool.outcome"
    dead_letter_topic: Topic = "tool.dead-letter"

    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Calls that execute at once in one worker."""
    lease_seconds: Annotated[Seconds, Field(ge=1, le=86_400)] = 30.0
    """How long a silent worker still counts as alive; renewed at a third of it."""
    wait_seconds: Annotated[Seconds, Field(ge=0, le=86_400)] = 60.0
    """How long a duplicate waits for another worker's run before it is answered `busy`: by default long enough to see
    the lease of a dead worker run out."""
    drain_seconds: Annotated[Seconds, Field(ge=0, le=86_400)] = 25.0
    """How long calls in flight are waited for at shutdown and when partitions are taken away."""
    ttl_hours: Annotated[Seconds, Field(gt=0)] = 48.0
    """The ledger's memory; must be longer than the dispatch topic can replay."""
    strict: bool = True
    """Refuse at start what is otherwise a warning: a memory shorter than the topic's, a bypass against evidence."""
    blobs: str | None = None
    """Where large results go: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///folder`."""
    inline_result_bytes: Annotated[int, Field(ge=0)] = 262_144
    """Results above this many bytes of JSON go to `blobs`."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 9464
    """Port of metrics and health; 0: none."""
    log_format: Literal["json", "console"] = "json"
    on_divergence: Literal["refuse", "adopt", "execute"] = "refuse"
    """What a re-dispatched node gets where its older generation already did something else."""

    def __init__(self, config: Path | None = None, **overrides: Any) -> None:
        layers = _layers(type(self), config, overrides)
        try:
            super().__init__(**_merged(layers))
        except ValidationError as error:
            problems = [_explain(detail, layers) for detail in error.errors(include_url=False)]
            raise SettingsError("; ".join(dict.fromkeys(problems))) from None

    @classmethod
    def load(cls, config: Path | None = None, **overrides: Any) -> Self:
        """Read the settings; `config` is a TOML file, `overrides` win over everything."""
        return cls(config, **overrides)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `__init__` has put together: it reads the layers itself, to know where a bad value came from."""
        return (init_settings,)

    @field_validator("kafka")
    @classmethod
    def _hide_secrets(cls, kafka: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
        for name in kafka.keys() & _OWN.keys():
            raise ValueError(f"{name} cannot be passed through: {_OWN[name]}")
        return {name: SecretStr(text) if _SECRET.search(name) else text for name, text in _plain(kafka).items()}

    @field_validator("kafka_bootstrap")
    @classmethod
    def _brokers(cls, brokers: str) -> str:
        for broker in brokers.split(","):
            if not re.fullmatch(r"\s*([A-Za-z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+)(:\d{1,5})?\s*", broker):
                raise ValueError("must be host:port, comma-separated")
        return brokers

    @field_validator("ledger_dsn")
    @classmethod
    def _postgres(cls, dsn: SecretStr | None) -> SecretStr | None:
        if dsn is not None and not re.match(r"postgres(ql)?://", dsn.get_secret_value()):
            raise ValueError("must be postgresql://user:password@host:port/database")
        return dsn

    @field_validator("blobs")
    @classmethod
    def _store(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if not re.fullmatch(r"((s3|gs|az)://[^/?#]+(/[^?#]*)?|file:///[^?#]+|memory://[^?#]*)", url):
            raise ValueError("must be s3://bucket/prefix, gs://…, az://… or file:///folder")
        if "@" in urlsplit(url).netloc:
            raise ValueError("must not carry credentials: the store's own variables hold them (AWS_ACCESS_KEY_ID …)")
        return url

    @model_validator(mode="after")
    def _distinct_topics(self) -> Self:
        topics = [self.dispatch_topic, self.outcome_topic, self.dead_letter_topic]
        if len(set(topics)) < len(topics):
            raise ValueError(f"dispatch, outcome and dead-letter topic must be three topics, not {', '.join(topics)}")
        return self

    def kafka_config(self) -> dict[str, Any]:
        """librdkafka's configuration for any client: the brokers and what is passed through; it holds the secrets."""
        return {"bootstrap.servers": self.kafka_bootstrap, **_plain(self.kafka)}

    def require_dsn(self) -> str:
        """The ledger's DSN, with its password.

        Raises:
            SettingsError: when it is not set.
        """
        if self.ledger_dsn is None:
            raise SettingsError("FENCEPOST_LEDGER_DSN is not set: set it to postgresql://user:password@host/database")
        return self.ledger_dsn.get_secret_value()

    def redact(self, text: str) -> str:
        """`text` without any secret of these settings and without passwords in URLs: for errors of other libraries."""
        for secret in sorted(set(self._secrets()), key=len, reverse=True):
            text = text.replace(secret, "***")
        return _KEYWORD_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1***", text))

    def _secrets(self) -> Iterator[str]:
        yield from (value.get_secret_value() for value in self.kafka.values() if isinstance(value, SecretStr))
        if self.ledger_dsn is not None:
            yield from _dsn_secrets(self.ledger_dsn.get_secret_value())


def _dsn_secrets(dsn: str) -> Iterator[str]:
    """The DSN's passwords as written and as meant, unless an open part of the DSN says the same word."""
    parts = urlsplit(dsn)
    open_words = {parts.username, parts.hostname, parts.path.strip("/")}
    hidden = [parts.password or "", *parse_qs(parts.query).get("password", [])]
    for spelled in hidden:
        yield from ({spelled, unquote(spelled)} - open_words - {""})


def _plain(kafka: Mapping[str, str | SecretStr]) -> dict[str, str]:
    return {name: v.get_secret_value() if isinstance(v, SecretStr) else v for name, v in kafka.items()}


@dataclass(frozen=True, slots=True)
class _Layer:
    """Values of one origin, and how that origin writes the name of a setting."""

    values: dict[str, Any]
    spell: Callable[[str], str]


def _layers(cls: type[BaseSettings], config: Path | None, overrides: dict[str, Any]) -> tuple[_Layer, ...]:
    """Lowest first."""
    known = tuple(cls.model_fields)
    return (
        _layer(_toml(config), known, lambda name: f"{name} in {config}"),
        _layer(_environment(cls, known), known, _variable),
        _layer(overrides, known, lambda name: name),
    )


def _layer(values: dict[str, Any], known: tuple[str, ...], spell: Callable[[str], str]) -> _Layer:
    _refuse_unknown((name for name in values if name not in known), known, spell)
    if isinstance(values.get("kafka"), Mapping):
        values = {**values, "kafka": dict(_properties(values["kafka"]))}
    return _Layer(values, spell)


def _merged(layers: tuple[_Layer, ...]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        both = isinstance(merged.get("kafka"), dict) and isinstance(layer.values.get("kafka"), dict)
        kafka = {"kafka": {**merged["kafka"], **layer.values["kafka"]}} if both else {}
        merged |= layer.values | kafka
    return merged


def _properties(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"sasl": {"mechanism": …}}`, `sasl_mechanism` and `sasl.mechanism` are one property."""
    for key, value in tree.items():
        name = prefix + str(key).replace("_", ".").lower()
        match value:
            case Mapping():
                yield from _properties(value, f"{name}.")
            case bool():
                yield name, str(value).lower()
            case int() | float():
                yield name, str(value)
            case _:
                yield name, value


def _toml(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(f"{config} cannot be read as TOML: {reason}") from None


def _environment(cls: type[BaseSettings], known: tuple[str, ...]) -> dict[str, Any]:
    """What the environment says, without what Kubernetes says there."""
    names = [name.upper() for name, value in os.environ.items() if _is_ours(name.upper(), value)]
    _refuse_unknown(
        (name for name in names if _field(name) not in known and not name.startswith(_KAFKA)),
        [_variable(field) for field in known if field != "kafka"],
    )
    try:
        values = EnvSettingsSource(cls)()
    except SourceError:
        raise SettingsError(f"FENCEPOST_KAFKA must be a JSON object; better set {_KAFKA}<PROPERTY>") from None
    return {field: value for field, value in values.items() if field == "kafka" or _variable(field) in names}


def _is_ours(name: str, value: str) -> bool:
    if not name.startswith(PREFIX) or name.startswith(_IGNORED):
        return False
    return not (_SERVICE_NAME.match(name) or (name.endswith("_PORT") and _SERVICE_URL.match(value)))


def _field(variable: str) -> str:
    return variable.removeprefix(PREFIX).lower()


def _variable(name: str) -> str:
    return PREFIX + name.upper().replace("KAFKA.", "KAFKA__", 1).replace(".", "_")


def _refuse_unknown(unknown: Iterable[str], known: Iterable[str], spell: Callable[[str], str] = str) -> None:
    known = list(known)
    problems = [f"{spell(name)} is not a setting: {_meant(name, known)}" for name in unknown]
    if problems:
        raise SettingsError("; ".join(problems))


def _meant(name: str, known: list[str]) -> str:
    # Compared without the prefix: it would make all names alike.
    bare = {one.removeprefix(PREFIX): one for one in known}
    wrong = name.removeprefix(PREFIX)
    near = get_close_matches(wrong, bare, n=1, cutoff=0.7)
    near += [one for one in bare if one.startswith(wrong) or wrong.startswith(one)]
    if near:
        return f"did you mean {bare[near[0]]}?"
    if wrong.startswith("KAFKA_"):
        return f"did you mean {_KAFKA}{wrong.removeprefix('KAFKA_')}?"
    return f"the nearest is {bare[get_close_matches(wrong, bare, n=1, cutoff=0.0)[0]]}"


def _explain(detail: ErrorDetails, layers: tuple[_Layer, ...]) -> str:
    """One problem of pydantic's as: where it was written, the value unless it is secret, what is allowed."""
    reason = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if not detail["loc"]:
        return reason
    field, *rest = (str(part) for part in detail["loc"])
    name = ".".join([field, *rest[:1]]) if field == "kafka" and rest else field
    layer = next((one for one in reversed(layers) if _lookup(one.values, name) is not None), layers[-1])
    value = _lookup(layer.values, name)
    shown = "" if field in ("kafka", "ledger_dsn", "blobs") else f" is {value!r}"
    return f"{layer.spell(name)}{shown}: {reason}"


def _lookup(values: dict[str, Any], name: str) -> Any:
    field, _, prop = name.partition(".")
    found = values.get(field)
    return found.get(prop) if prop and isinstance(found, dict) else found
