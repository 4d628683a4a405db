"""The folder that a `file://` URL or a plain path names."""

from __future__ import annotations

from pathlib import Path

import pytest
from offload_posix.url import open_url

from offload.ground.errors import Misuse


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("file:///srv/tier", "/srv/tier"),
        ("FILE://localhost/srv/tier", "/srv/tier"),
        ("file://./tier", "tier"),
        ("file:///srv/a%20tier", "/srv/a tier"),
        ("tier", "tier"),
        ("localhost/tier", "localhost/tier"),
        ("/srv/a%20tier", "/srv/a%20tier"),
    ],
)
def test_only_a_url_has_a_host_and_escapes(url: str, folder: str) -> None:
    store = open_url(url)

    assert store.url == f"file://{Path(folder).absolute()}".replace("%", "%25")
    assert open_url(store.url).url == store.url


@pytest.mark.parametrize("url", ["", "file://", "file://a%00b"])
def test_a_url_without_a_folder_is_refused(url: str) -> None:
    with pytest.raises(Misuse, match="names no folder"):
        open_url(url)
