"""Tests of configuration files: each mistake has its line, and no secret is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from offload_s3.options import S3Options

from offload.ground.errors import Misuse
from offload.service.config import RunConfig, UpkeepConfig
from offload.service.config_file import load_config

ROOT = Path(__file__).parents[2]
OF_BROKER = {"broker", "broker_user", "broker_password"}
HEAD = 'source = "rabbitmq:///data"\ntier = "s3://bucket/tier"\n'


def written(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(f"{HEAD}{text}\n")
    path.chmod(mode)
    return path


def loaded(tmp_path: Path, text: str, **environ: str) -> RunConfig:
    config, warnings = load_config(written(tmp_path, text), environ)
    assert warnings == []
    return config


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('lisen = "9000"', 3, "lisen is no key here; did you mean 'listen'?"),
        ('memory = "1GB"\nmemory = "2GB"', 4, "this is no TOML"),
        ('memory = "100MiB"', 3, "memory: expected at least 224MiB; found '100MiB'"),
        ("stop_seconds = true", 3, "stop_seconds: expected a number; found True"),
        ('[streams."a.b-*"]\nmax_lagg = "5s"', 4, 'streams."a.b-*".max_lagg is no key here'),
        (
            '[streams."*"]\n\n# why\nmax_age = 7',
            6,
            'max_age: expected a duration such as "30s" or "7d"; found 7',
        ),
        ('[streams."*"]\nmax_lag = "500"', 4, "max_lag: takes a number and one of s, m, h, d, w, such as"),
        ('[streams."*"]\nmax_bytes = "7q"', 4, "max_bytes: takes bytes, such as 100GB"),
        ('[streams."*"]\nhold_back = "16s"', 3, "hold_back is at most half of max_lag (30 s), not 16 s"),
        (
            '[streams."*"]\nalarm_lag = "29s"',
            3,
            "alarm_lag is at least max_lag (30 s), not 29 s: the stream would be late all the time",
        ),
        ('[streams."*"]\nmax_age = "0s"', 4, "max_age: expected greater than 0; found '0s'"),
        ('[streams."*"]\nmax_bytes = "0"', 4, "max_bytes: expected greater than 0; found '0'"),
        ('[streams."*"]\non_gap = "stop"', 4, "on_gap: expected 'pause' or 'new-part'; found 'stop'"),
        ('[streams."*"]\ncompress = "gzip"', 4, "'gzip' is no compression"),
        ('[streams."*"]\nencrypt = "/etc/key"', 4, "is no label of a key"),
        ("streams.x.follow = 1", 3, 'streams."x".follow: expected a boolean; found 1'),
        ('[upkeep]\nsweep = "0s"', 4, 'upkeep.sweep: expected a duration above 0, or "off"'),
        ('[options]\nsecret_env = "HUSH"', 4, "the environment has no variable 'HUSH'"),
        ('[options]\nsecret_file = "absent"', 4, "No such file or directory"),
        ('[options]\nsecret_file = "run.toml"\nsecret = "x"', 5, "options.secret: 'secret' is given twice"),
        ('broker_password = "hush"', 3, "broker_password: is for the broker, and `broker` is missing"),
        ('broker = "b"\nbroker_password = 17', 4, "expected a string; found 'a value that is not shown'"),
        ('broker = "b"\nbroker_password_env = "HUSH"', 4, "the environment has no variable 'HUSH'"),
        ('broker = "b"\nbroker_pasword = "x"', 4, "is no key here; did you mean 'broker_password'?"),
        ('listen = "host:99999"', 3, 'listen: expected "HOST:PORT"'),
    ],
)
def test_a_mistake_is_an_error_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = written(tmp_path, text)

    with pytest.raises(Misuse) as caught:
        load_config(path, {})

    assert said in str(caught.value)
    assert "hush" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ") or f"(at line {line}," in str(caught.value)


def test_two_globs_that_are_equal_are_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, '[streams.a]\nmax_lag = "5s"\n[streams."a"]\nmax_lag = "9s"')

    with pytest.raises(Misuse, match=r"twice \(at line 5"):
        load_config(path, {})


def test_all_mistakes_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path, '[upkeep]\nswep = "1d"\n[options]\nlist = [\n  "hush",\n]\n[streams.a]\nfollow = 1'
    )

    with pytest.raises(Misuse) as caught:
        load_config(path, {})

    places = [each.split(": ")[0] for each in str(caught.value).split("; ") if each.startswith(str(path))]
    assert places == [f"{path}:{line}" for line in (4, 6, 10)]
    assert "hush" not in str(caught.value)


def test_a_file_without_a_source_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('tier = "x"')

    with pytest.raises(Misuse, match="source is missing"):
        load_config(path, {})


def test_the_text_of_a_value_is_not_taken_for_a_key(tmp_path: Path) -> None:
    """The lines of a value may look like statements."""
    path = written(tmp_path, '[options]\nnote = """\n[upkeep]\nsweep = 1\n"""\n[upkeep]\nsweep = "0s"')

    with pytest.raises(Misuse, match=r"run\.toml:9: upkeep\.sweep: "):
        load_config(path, {})


def test_secrets_come_from_files_beside_the_configuration_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")

    config = loaded(tmp_path, '[options]\ntoken_file = "token"\nsecret_env = "S"\nplain = 1', S="from there")

    assert config.options == {"token": "from a file", "secret": "from there", "plain": 1}


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xef\xbb\xbfhush\r\n")
    path = written(tmp_path, '[options]\ntoken_file = "token"')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))

    config, warnings = load_config(path, {})

    assert (config.options, warnings) == ({"token": "hush"}, [])


def test_a_secret_in_a_file_that_all_can_read_is_a_warning_without_the_secret(tmp_path: Path) -> None:
    text = '[options]\n"commit.secret" = "hush"\nregion = "eu"\ntoken_file = "run.toml"'

    _, (warning,) = load_config(written(tmp_path, text, mode=0o604), {})

    assert "options.commit.secret may be a secret: chmod o-r" in warning
    assert "hush" not in warning
    in_the_clear = written(tmp_path, 'broker = "b"\nbroker_password = "hush"', mode=0o604)
    config, (warning,) = load_config(in_the_clear, {})
    assert "broker_password may be a secret: chmod o-r" in warning
    assert "hush" not in warning + repr(config)
    assert load_config(written(tmp_path, text, mode=0o640), {})[1] == []


def test_values_have_their_units(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        'memory = "1GiB"\nlisten = "[::1]:9000"\nstop_seconds = 5\ndiscover = "1m"\n'
        '[streams.a]\nmax_age = "1d"\nmax_bytes = "1KiB"\n[upkeep]\nverify = "off"\nverify_rate = "2MB"',
    )

    stream, upkeep = config.of("a"), config.upkeep
    assert (config.memory_size_bytes, config.address) == (2**30, ("::1", 9000))
    assert (config.stop_seconds, config.discover_seconds) == (5.0, 60.0)
    assert stream.retention is not None
    assert (stream.retention.age_seconds_max, stream.retention.size_bytes_max) == (86_400.0, 1024)
    assert (upkeep.verify_seconds, upkeep.verify_bytes_per_second_max) == (None, 2_000_000)


def test_the_example_of_the_task_page_is_a_configuration(tmp_path: Path) -> None:
    """Its comments say "default" where the value is one."""
    page = (ROOT / "docs" / "run.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "bucket-secret").write_text("hush\n")
    (tmp_path / "broker-login").write_text("hush too\n")
    path = tmp_path / "run.toml"
    path.write_text(text)

    config, warnings = load_config(path, {"BUCKET_KEY": "me"})

    assert warnings == []
    assert config.options == {"region": "eu-central-1", "key": "me", "secret": "hush"}
    assert config.model_dump(include=OF_BROKER) == {
        "broker": "rabbitmq-stream://localhost",
        "broker_user": "offload",
        "broker_password": "hush too",
    }
    assert S3Options.of(config.options).region == "eu-central-1"
    assert (config.glob_of("orders-1"), config.of("test-1").follow) == ("orders-*", False)
    assert config.of("other").index == ["amqp:properties.message_id"]
    shown, default = config.of("other").rules, RunConfig(source="", tier="").of("other").rules
    assert replace(shown, alarm_lag_seconds=None) == default
    assert shown.alarm_seconds == default.alarm_seconds
    assert config.upkeep.model_copy(update={"verify_bytes_per_second_max": None}) == UpkeepConfig()
    bare = RunConfig(source="", tier="").model_dump(
        exclude={"source", "tier", "keys", "options", "streams", "control", "instance"} | OF_BROKER
    )
    told = config.model_dump(include={*bare} - {"upkeep", "prices"})
    assert told == {name: bare[name] for name in told}
