"""The S3 client by fsspec on a server of a test, and a minimal imitation of S3."""

from __future__ import annotations

import re

from cloud.calls import DIGITS, Client, part_of
from offload_s3 import S3Options
from offload_s3.store import S3Store
from wire import Answer, Heard

TAGGED = {"ETag": '"e"'}
LOGIN = {"region": "us-east-1", "key": "AKEY", "secret": "HUSH", "token": "HUSH-TOKEN"}
NO_LOGIN = {"key": None, "secret": None, "token": None}
"""Options that leave the login to the environment."""


def answers(heard: Heard) -> Answer:
    """Answer every call of the port with success, as S3 does."""
    match heard.method, sorted(heard.query):
        case "POST", ["uploads"]:
            return xml("InitiateMultipartUploadResult", "<UploadId>u</UploadId>")
        case "POST", ["uploadId"]:
            return xml("CompleteMultipartUploadResult", "<Key>a/key</Key>")
        case "POST", ["delete"]:
            deleted = b"".join(re.findall(rb"<Key>.*?</Key>", heard.body)).decode()
            return xml(
                "DeleteResult",
                deleted.replace("<Key>", "<Deleted><Key>").replace("</Key>", "</Key></Deleted>"),
            )
        case "GET", ["uploads", *_] | [_, "uploads", *_]:
            return xml(
                "ListMultipartUploadsResult", "<Bucket>bucket</Bucket><IsTruncated>false</IsTruncated>"
            )
        case "DELETE", ["uploadId"]:
            return Answer(204)
        case "GET", ["delimiter" | "encoding-type" | "list-type", *_]:
            return xml("ListBucketResult", "<Name>bucket</Name><IsTruncated>false</IsTruncated>")
        case "GET", _:
            return part_of(DIGITS, heard, TAGGED, beyond=refusal("InvalidRange", 416))
    return Answer(headers=TAGGED)


def xml(name: str, inside: str, status: int = 200, **headers: str) -> Answer:
    return Answer(
        status, f"<{name}>{inside}</{name}>".encode(), {"Content-Type": "application/xml"} | headers
    )


def refusal(code: str, status: int, inside: str = "", **headers: str) -> Answer:
    return xml("Error", f"<Code>{code}</Code><Message>m</Message>{inside}", status, **headers)


S3 = Client(
    open=lambda options: S3Store(bucket="bucket", options=S3Options.of(options)),
    login=LOGIN,
    anonymous=NO_LOGIN | {"anonymous": True},
    answers=answers,
)
of_store, error_of = S3.of_store, S3.error_of
