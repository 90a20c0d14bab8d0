from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fencepost_dispatch.settings import Settings, SettingsError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)


def refusal(**overrides: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.load(**overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def toml(folder: Path, text: str) -> Path:
    path = folder / "fencepost.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = Settings.load()
    assert settings.kafka_bootstrap == "localhost:9092"
    assert (settings.dispatch_topic, settings.outcome_topic) == ("tool.dispatch", "tool.outcome")
    assert settings.dead_letter_topic == "tool.dead-letter"
    assert (settings.group_id, settings.default_org, settings.ledger_dsn) == ("fencepost", None, None)
    assert (settings.lease_seconds, settings.drain_seconds, settings.ttl_hours) == (30, 25, 48)
    assert (settings.strict, settings.inline_result_bytes, settings.metrics_port) == (True, 262144, 9464)
    assert (settings.log_format, settings.on_divergence) == ("json", "refuse")


def test_an_override_wins_over_the_environment_over_toml_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toml(tmp_path, 'concurrency = 2\ngroup_id = "from-toml"\nlog_format = "console"')
    monkeypatch.setenv("FENCEPOST_CONCURRENCY", "3")
    monkeypatch.setenv("FENCEPOST_GROUP_ID", "from-env")
    settings = Settings.load(config, concurrency=4)
    assert (settings.concurrency, settings.group_id, settings.log_format) == (4, "from-env", "console")


def test_kafka_properties_of_all_layers_are_merged_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toml(
        tmp_path, '[kafka]\nsasl.mechanism = "PLAIN"\nsecurity_protocol = "SASL_SSL"\n"socket.keepalive.enable" = true'
    )
    monkeypatch.setenv("FENCEPOST_KAFKA__SASL_MECHANISM", "SCRAM-SHA-512")
    monkeypatch.setenv("FENCEPOST_KAFKA__SESSION_TIMEOUT_MS", "6000")
    assert Settings.load(config, kafka={"client.id": "x"}).kafka_config() == {
        "bootstrap.servers": "localhost:9092",
        "sasl.mechanism": "SCRAM-SHA-512",
        "security.protocol": "SASL_SSL",
        "socket.keepalive.enable": "true",
        "session.timeout.ms": "6000",
        "client.id": "x",
    }


@pytest.mark.parametrize("password", ["123", "true", "null", '{"a": 1}', '"quoted"', "1e400", "p w", "ü__x"])
def test_a_property_reaches_librdkafka_as_it_was_written(password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_KAFKA__SASL_PASSWORD", password)
    assert Settings.load().kafka_config()["sasl.password"] == password


@pytest.mark.parametrize(
    "written, meant",
    [
        ("FENCEPOST_LEASE_SECOND", "FENCEPOST_LEASE_SECONDS"),
        ("FENCEPOST_KAFKA_BOOTSTRAP_SERVERS", "FENCEPOST_KAFKA_BOOTSTRAP"),
        ("FENCEPOST_KAFKA_SASL_MECHANISM", "FENCEPOST_KAFKA__SASL_MECHANISM"),
        ("FENCEPOST_DSN", "FENCEPOST_LEDGER_DSN"),
        ("FENCEPOST_LEASE", "FENCEPOST_LEASE_SECONDS"),
        ("FENCEPOST_TTL", "FENCEPOST_TTL_HOURS"),
        ("FENCEPOST_BOOTSTRAP", "FENCEPOST_KAFKA_BOOTSTRAP"),
        ("FENCEPOST_X", "FENCEPOST_"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    written: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(written, "1")
    text = refusal()
    assert written in text
    assert meant in text


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"concurency in .*toml is not a setting: did you mean concurrency\?"):
        Settings.load(toml(tmp_path, "concurency = 3"))


def test_an_unknown_override_is_refused() -> None:
    assert "did you mean concurrency?" in refusal(concurency=1)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for config in (tmp_path / "none.toml", toml(tmp_path, "= 3")):
        with pytest.raises(SettingsError, match="cannot be read as TOML") as caught:
            Settings.load(config)
        assert "\n" not in str(caught.value)


def test_variables_of_the_tests_and_of_kubernetes_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_TEST_KAFKA", "localhost:1")
    monkeypatch.setenv("FENCEPOST_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("FENCEPOST_PORT", "tcp://10.0.0.1:9464")
    monkeypatch.setenv("FENCEPOST_METRICS_PORT", "tcp://10.0.0.1:9464")
    monkeypatch.setenv("FENCEPOST_METRICS_PORT_9464_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("FENCEPOST_METRICS_SERVICE_PORT_HTTP", "9464")
    assert Settings.load().metrics_port == 9464


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_DEFAULT_ORG", "")
    assert Settings.load().default_org is None


@pytest.mark.parametrize(
    "name, value",
    [
        ("CONCURRENCY", "0"),
        ("CONCURRENCY", "many"),
        ("LEASE_SECONDS", "0.1"),
        ("LEASE_SECONDS", "inf"),
        ("WAIT_SECONDS", "-1"),
        ("TTL_HOURS", "0"),
        ("TTL_HOURS", "nan"),
        ("METRICS_PORT", "70000"),
        ("LOG_FORMAT", "xml"),
        ("STRICT", "perhaps"),
        ("DISPATCH_TOPIC", "a b"),
        ("ON_DIVERGENCE", "ignore"),
        ("GROUP_PROTOCOL", "eager"),
        ("KAFKA_BOOTSTRAP", "localhost:ninety"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_what_is_allowed(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"FENCEPOST_{name}", value)
    text = refusal()
    assert text.startswith(f"FENCEPOST_{name} is '{value}': ")
    assert "must" in text


def test_every_bad_value_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_CONCURRENCY", "0")
    monkeypatch.setenv("FENCEPOST_LOG_FORMAT", "xml")
    text = refusal()
    assert "FENCEPOST_CONCURRENCY" in text
    assert "FENCEPOST_LOG_FORMAT" in text


def test_a_bad_value_of_the_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"concurrency in .*fencepost\.toml is 0: must be greater"):
        Settings.load(toml(tmp_path, "concurrency = 0"))


def test_two_topics_cannot_be_one() -> None:
    assert "three topics" in refusal(outcome_topic="tool.dispatch")


@pytest.mark.parametrize(
    "name", ["acks", "enable.auto.commit", "enable.idempotence", "group.id", "bootstrap.servers", "GROUP_PROTOCOL"]
)
def test_what_the_promise_rests_on_is_not_passed_through(name: str) -> None:
    assert "cannot be passed through" in refusal(kafka={name: "x"})


SECRETS = {
    "sasl.password": "hunter2-sasl",
    "ssl.key.password": "hunter2-key",
    "ssl.keystore.password": "hunter2-store",
    "ssl.key.pem": "hunter2-pem",
    "sasl.oauthbearer.client.secret": "hunter2-client",
    "sasl.oauthbearer.config": "principal=hunter2",
    "sasl.oauthbearer.assertion.private.key.passphrase": "hunter2-phrase",
}


def test_no_secret_appears_in_repr_or_dump() -> None:
    settings = Settings.load(kafka={**SECRETS, "sasl.username": "ann"}, ledger_dsn="postgresql://ann:hunter2@db/x")
    for shown in (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert "hunter2" not in shown
        assert "ann" in shown
    assert settings.kafka_config()["sasl.password"] == "hunter2-sasl"
    assert settings.require_dsn() == "postgresql://ann:hunter2@db/x"


def test_no_secret_appears_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_LEDGER_DSN", "mysql://ann:hunter2@db/x")
    text = refusal(kafka=SECRETS, concurrency=0)
    assert "FENCEPOST_LEDGER_DSN: must be postgresql://" in text
    assert "hunter2" not in text


def test_secrets_are_taken_out_of_foreign_texts() -> None:
    settings = Settings.load(kafka=SECRETS, ledger_dsn="postgresql://ann:hunter%202@db/x?sslmode=require")
    text = "login hunter2-sasl, postgresql://bob:other@h/x, 'hunter%202', hunter 2, password=else host=h"
    shown = settings.redact(text)
    for secret in ("hunter", "other", "else"):
        assert secret not in shown
    assert "bob" in shown
    assert "host=h" in shown


def test_a_password_that_is_also_the_user_does_not_garble_texts() -> None:
    settings = Settings.load(ledger_dsn="postgresql://postgres:postgres@db/postgres")
    assert settings.redact("postgres is not running") == "postgres is not running"


def test_a_missing_dsn_says_what_to_set() -> None:
    with pytest.raises(SettingsError, match="FENCEPOST_LEDGER_DSN is not set"):
        Settings.load().require_dsn()
