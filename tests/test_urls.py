"""Tests of URLs: a scheme is matched without case everywhere."""

from __future__ import annotations

import pytest

from offload.ground.errors import Misuse
from offload.ground.urls import scheme_of, with_lower_scheme
from offload.opening.by_url import open_source, open_store
from offload.opening.plugins import Plugins


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("S3://Bucket/Pre", "s3://Bucket/Pre"),
        ("GS://bucket/Pre", "gs://bucket/Pre"),
        ("GCS://bucket", "gs://bucket"),
        ("AZ://container/Pre", "az://container/Pre"),
        ("FILE:///Srv/Tier", "file:///Srv/Tier"),
    ],
)
def test_a_backend_accepts_its_scheme_in_any_case(url: str, opened: str) -> None:
    plugins = Plugins.find()
    options = {"account_name": "account", "account_key": "a2V5"} if opened.startswith("az") else {}

    assert open_store(url, plugins=plugins, storage_options=options).url == opened


def test_a_source_accepts_its_scheme_in_any_case() -> None:
    assert open_source("RabbitMQ:///Streams").url == "rabbitmq:///Streams"


def test_a_third_party_backend_gets_its_scheme_in_lower_case() -> None:
    assert with_lower_scheme("Attic+X://Place/S3://y") == "attic+x://Place/S3://y"


@pytest.mark.parametrize(
    "path",
    ["", "tier", "tier//", "/srv//x", "./s3//x", "/srv/s3:/x", "./s3:/x", "2026-11-22T10:00", "a b:c", "é:x"],
)
def test_a_plain_path_has_no_scheme_and_stays_as_it_is(path: str) -> None:
    assert scheme_of(path) is None
    assert with_lower_scheme(path) == path


@pytest.mark.parametrize("url", ["s3:/bucket", "s3:bucket", "s3:", "My+Cloud:/x"])
def test_a_word_and_a_colon_without_two_slashes_is_refused(url: str) -> None:
    with pytest.raises(Misuse, match=r"use (s3|my\+cloud)://"):
        scheme_of(url)


@pytest.mark.parametrize("url", ["s3//bucket/x", "My+Cloud//x", "tier//orders"])
def test_a_word_and_two_slashes_without_a_colon_is_refused(url: str) -> None:
    word, _, rest = url.partition("//")

    with pytest.raises(Misuse, match="the colon is missing in") as refused:
        scheme_of(url)

    assert f" {word.lower()}://{rest}; a folder of that name is ./{word}/{rest}" in str(refused.value)


@pytest.mark.parametrize("url", ["s3:/key:secret@bucket", "s3//key:secret@bucket"])
def test_the_error_for_a_mistyped_url_shows_no_login(url: str) -> None:
    with pytest.raises(Misuse) as refused:
        scheme_of(url)

    assert "secret" not in str(refused.value)
    assert "bucket" in str(refused.value)
