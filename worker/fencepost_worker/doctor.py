"""`fencepost doctor`: whether everything that a worker needs is there and sound. Changes nothing."""

from __future__ import annotations

from confluent_kafka import KafkaException

from fencepost_dispatch.settings import Settings, SettingsError
from fencepost_ledger import LedgerUnavailable, schema_status
from fencepost_ledger.clock import clock_offset
from fencepost_ledger.isolation import require_whole_sight
from fencepost_worker.topics import BrokersUnavailable, Finding, check

CLOCK_SECONDS = 5.0  # a difference that people notice in timestamps; nothing is decided by this machine's clock


def examine(settings: Settings) -> tuple[list[Finding], bool]:
    """→ what was found, and whether every service answered."""
    brokers, kafka = _brokers(settings)
    ledger, postgres = _ledger(settings)
    return brokers + ledger, kafka and postgres


def _brokers(settings: Settings) -> tuple[list[Finding], bool]:
    try:
        findings = check(settings.kafka_config(), settings)
    except BrokersUnavailable as error:
        return [_fault("brokers", error, settings)], False
    except KafkaException as error:  # a property that librdkafka refuses
        return [Finding("error", "settings", settings.redact(error.args[0].str()), "correct FENCEPOST_KAFKA__*")], True
    return [Finding("ok", "brokers", f"answer at {settings.kafka_bootstrap}"), *findings], True


def _ledger(settings: Settings) -> tuple[list[Finding], bool]:
    try:
        dsn = settings.require_dsn()
        status, line = schema_status(dsn)
        offset = clock_offset(dsn)
    except SettingsError as error:
        return [_fault("database", error, settings)], True
    except LedgerUnavailable as error:
        return [_fault("database", error, settings)], False
    sight = [_sight(dsn, settings)] if status in ("current", "newer") else []
    return [Finding("ok", "database", "answers"), _schema(status, line), *sight, _clock(offset)], True


def _schema(status: str, line: str) -> Finding:
    level = {"current": "ok", "newer": "warning"}.get(status, "error")
    text, _, cure = line.partition(": ")
    match level:
        case "ok":
            return Finding("ok", "schema", line)
        case "warning":
            return Finding("warning", "schema", text, cure)
        case _:
            return Finding("error", "schema", text, cure)


def _sight(dsn: str, settings: Settings) -> Finding:
    try:
        require_whole_sight(dsn)
    except LedgerUnavailable as error:
        return _fault("rights", error, settings)
    return Finding("ok", "rights", "this role sees the rows of every org, as a worker must")


def _clock(offset: float) -> Finding:
    if abs(offset) < CLOCK_SECONDS:
        return Finding("ok", "clock", f"within {max(abs(offset), 0.001):.3f} s of the database's")
    side = "behind" if offset > 0 else "ahead of"
    text = f"this machine is {abs(offset):.1f} s {side} the database: times in logs and outcomes will disagree"
    return Finding("warning", "clock", text, "synchronise both (NTP)")


def _fault(subject: str, error: Exception, settings: Settings) -> Finding:
    text, _, cure = settings.redact(str(error)).rpartition("; ")
    if not text:
        text, _, cure = settings.redact(str(error)).rpartition(": ")
    return Finding("error", subject, text or cure, cure if text else "")
