"""S3 and STS of moto, which checks signatures, called by boto3 through the proxy.

Prints the server's port and an access key, waits for the proxy's URL, then prints what came of each
call. boto3 itself signs with a key that moto does not know.
"""

import base64
import hashlib
import json
import os
import sys

# So many calls are not checked: those that make the user, its key and its rights.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"

import boto3
import requests
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
_, port = server.get_host_and_port()
endpoint = f"http://127.0.0.1:{port}"
region = "eu-west-1"


def client(service, key, proxy=None, **more):
    proxies = {"http": proxy} if proxy else {}
    config = Config(proxies=proxies, retries={"total_max_attempts": 1}, **more)
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=config,
    )


def attempt(call):
    try:
        return call()
    except ClientError as error:
        return error.response["Error"]["Code"]


iam = client("iam", ("any", "any"))
iam.create_user(UserName="user")
policy = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
iam.put_user_policy(UserName="user", PolicyName="all", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="user")["AccessKey"]
client("s3", ("any", "any"), s3={"addressing_style": "path"}).create_bucket(
    Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": region}
)
print(json.dumps({"port": port, "key": f"{key['AccessKeyId']}:{key['SecretAccessKey']}"}), flush=True)

proxy = sys.stdin.readline().strip()
dummy = ("AKIAIOSFODNN7EXAMPLE", "dummy")
path = {"addressing_style": "path"}
s3 = client("s3", dummy, proxy, s3=path)
results = {"unsigned": attempt(lambda: client("s3", dummy, s3=path).list_objects_v2(Bucket="bucket"))}


def round_trip(name, content, **more):
    put = attempt(lambda: s3.put_object(Bucket="bucket", Key=name, Body=content, **more))
    if isinstance(put, str):
        return put
    got = attempt(lambda: s3.get_object(Bucket="bucket", Key=name)["Body"].read())
    return got if isinstance(got, str) else hashlib.sha256(got).digest() == hashlib.sha256(content).digest()


names = ["plain", "a b/c+d", "\u00fc\u1234", "a%2Fb", "dots/../x", "q?a=b&c", "~-._", "a//b"]
results["names"] = {name: round_trip(name, name.encode()) for name in names}
results["trailer"] = round_trip("sum", b"x" * 3000, ChecksumAlgorithm="SHA256")
results["large"] = round_trip("large", os.urandom(3 << 20))
results["empty"] = round_trip("empty", b"")
listed = attempt(lambda: s3.list_objects_v2(Bucket="bucket", Prefix="a b/"))
results["listed"] = listed if isinstance(listed, str) else [o["Key"] for o in listed["Contents"]]
whole = client("s3", dummy, proxy, s3={**path, "payload_signing_enabled": True})
put = attempt(lambda: whole.put_object(Bucket="bucket", Key="signed", Body=b"whole"))
results["signed"] = put if isinstance(put, str) else True


def chunked(name, size, trailer):
    """What SDKs of other languages send: chunks with signatures of the client's own key."""
    content = os.urandom(size)
    mark = b";chunk-signature=" + b"0" * 64 + b"\r\n"
    pieces = [content[at : at + 65536] for at in range(0, size, 65536)]
    body = b"".join(b"%x" % len(piece) + mark + piece + b"\r\n" for piece in pieces) + b"0" + mark
    kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    headers = {"x-amz-decoded-content-length": str(size), "content-encoding": "aws-chunked"}
    if trailer:
        kind += "-TRAILER"
        headers["x-amz-trailer"] = "x-amz-checksum-sha256"
        digest = base64.b64encode(hashlib.sha256(content).digest())
        body += b"x-amz-checksum-sha256:" + digest + b"\r\n"
        body += b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n"
    body += b"\r\n"
    scope = f"20130524/{region}/s3/aws4_request"
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/{scope}, SignedHeaders=host, Signature=00"
    )
    headers["x-amz-content-sha256"] = kind
    url = f"{endpoint}/bucket/{name}"
    put = requests.put(url, data=body, headers=headers, proxies={"http": proxy}, timeout=60)
    if put.status_code != 200:
        return put.text
    return s3.get_object(Bucket="bucket", Key=name)["Body"].read() == content


results["chunks"] = [chunked("c1", 70_000, False), chunked("c2", 3 << 20, False)]
results["chunks_trailer"] = [chunked("c3", 70_000, True), chunked("c4", 3 << 20, True)]
identity = attempt(lambda: client("sts", dummy, proxy).get_caller_identity())
results["identity"] = identity if isinstance(identity, str) else identity["Arn"].split(":", 5)[5]
print(json.dumps(results), flush=True)
server.stop()
