"""The proof that a reply of success is S3's: what it must contain, for each request.

A login page, a captive portal or a gateway under maintenance may answer 200 to any request. The client reads
such a page, and an empty body too, as a reply whose members are all absent: a listing without objects, a
deletion without errors. So success is read from something that the reply contains, never from an absence.

    request                         the reply contains
    put, create, part, read, HEAD   the header `ETag`
    ListObjectsV2                   the bucket's name, and either that no page follows, or where it begins
    ListMultipartUploads            the same
    DeleteObjects                   a result for each key that was asked for, and for no other
    CreateMultipartUpload           the upload's id
    CompleteMultipartUpload         the key (its `ETag` is empty on Ceph's gateway)
    AbortMultipartUpload            nothing; its status is 204
    DeleteObject                    the same

`S3Store.ask` takes a proof for each request. MinIO, Ceph's gateway, moto and AWS send all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

__all__ = [
    "S3Proof",
    "has_no_content",
    "is_completed",
    "is_page",
    "is_page_of_uploads",
    "is_tagged",
    "is_upload",
    "results_for",
]

S3Proof: TypeAlias = Callable[[Any], bool]
"""Returns True if a reply, as the client parsed it, contains what the service's reply does."""

NO_CONTENT: Final = 204


def is_tagged(reply: Any) -> bool:
    """Prove a reply about the bytes of one object."""
    return bool(reply.get("ETag"))


def is_page(bucket: str) -> S3Proof:
    """Prove a page of ListObjectsV2."""

    def proof(page: Any) -> bool:
        return _is_of(bucket, page.get("Name")) and _says_how_to_go_on(page, "NextContinuationToken")

    return proof


def is_page_of_uploads(bucket: str) -> S3Proof:
    """Prove a page of ListMultipartUploads."""

    def proof(page: Any) -> bool:
        return _is_of(bucket, page.get("Bucket")) and _says_how_to_go_on(page, "NextKeyMarker")

    return proof


def results_for(keys: Sequence[str]) -> S3Proof:
    """Prove a reply to DeleteObjects. The result of a key is its deletion or an error."""

    def proof(reply: Any) -> bool:
        results = [*reply.get("Deleted", ()), *reply.get("Errors", ())]
        return {_read(result.get("Key", "")) for result in results} == {_read(key) for key in keys}

    return proof


def is_upload(reply: Any) -> bool:
    """Prove a reply to CreateMultipartUpload."""
    return bool(reply.get("UploadId"))


def is_completed(reply: Any) -> bool:
    """Prove a reply to CompleteMultipartUpload. The key is not compared: its spelling may differ."""
    return bool(reply.get("Key"))


def has_no_content(reply: Any) -> bool:
    """Prove a reply to AbortMultipartUpload or DeleteObject."""
    return bool(reply["ResponseMetadata"]["HTTPStatusCode"] == NO_CONTENT)


def _is_of(bucket: str, name: str | None) -> bool:
    # An access point, named by its alias or ARN, may answer with another name than it was asked by.
    is_access_point = bucket.startswith("arn:") or bucket.endswith(("-s3alias", "--op-s3"))
    return bool(name) if is_access_point else name == bucket


def _read(key: str) -> str:
    """Return a key as XML is read: a line end that the server did not quote becomes a newline."""
    return key.replace("\r\n", "\n").replace("\r", "\n")


def _says_how_to_go_on(page: Any, following: str) -> bool:
    is_truncated = page.get("IsTruncated")
    return is_truncated is False or (is_truncated is True and bool(page.get(following)))
