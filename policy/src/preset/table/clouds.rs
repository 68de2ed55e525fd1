//! Clouds.

use super::super::{Attach, Key, Mint, Preset, Repeat};
use super::{ALL, NOT, POST, at, line, named, read, source, with_action};
use journal::contract::{KeyPlace, RemoteContract};
use std::borrow::Cow;

pub(super) const AWS: Preset = Preset {
    name: "aws",
    title: "Amazon Web Services",
    hosts: &["*.amazonaws.com"],
    path: None,
    attach: Attach::Sigv4,
    secret: "an access key, `ACCESS_KEY_ID:SECRET_ACCESS_KEY` or with `:SESSION_TOKEN`",
    source: read("https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html"),
    mints: &[
        Mint::Host("sts.amazonaws.com"),
        Mint::Host("sts.*.amazonaws.com"),
        Mint::Host("sts-fips.*.amazonaws.com"),
        Mint::Host("iam.amazonaws.com"),
        Mint::Host("iam.*.amazonaws.com"),
        Mint::Host("cognito-identity.*.amazonaws.com"),
        Mint::Host("cognito-identity-fips.*.amazonaws.com"),
        Mint::Host("oidc.*.amazonaws.com"),
        Mint::Host("portal.sso.*.amazonaws.com"),
        Mint::Host("secretsmanager.*.amazonaws.com"),
        Mint::Host("secretsmanager-fips.*.amazonaws.com"),
        Mint::Host("ssm.*.amazonaws.com"),
        Mint::Host("ssm-fips.*.amazonaws.com"),
    ],
    lines: &[
        at(
            &["ec2.amazonaws.com", "ec2.*.amazonaws.com"],
            line(
                POST,
                &["/"],
                Repeat::WithKey(Key {
                    place: KeyPlace::Form(Cow::Borrowed("ClientToken")),
                    actions: &["RunInstances"],
                    retention_minutes: 24 * 60,
                    contract: RemoteContract::Verified,
                }),
                "a token is valid for at least 24 hours after the instance ended; the first result is answered again, other parameters are refused; every other action is not promised",
                read(
                    "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Run_Instance_Idempotency.html",
                ),
            ),
        ),
        named(
            &["dynamodb.*.amazonaws.com"],
            &["DynamoDB_20120810.TransactWriteItems"],
            line(
                POST,
                &["/"],
                Repeat::WithKey(Key {
                    place: KeyPlace::Json(Cow::Borrowed("/ClientRequestToken")),
                    actions: &[],
                    retention_minutes: 10,
                    contract: RemoteContract::Verified,
                }),
                "calls with one token have the effect of one for 10 minutes; other parameters are refused; only the capacity that is told can differ",
                read(
                    "https://docs.aws.amazon.com/sdk-for-kotlin/api/latest/dynamodb/aws.sdk.kotlin.services.dynamodb.model/-transact-write-items-request/client-request-token.html",
                ),
            ),
        ),
        named(
            &["secretsmanager.*.amazonaws.com"],
            &["secretsmanager.PutSecretValue"],
            line(
                POST,
                &["/"],
                Repeat::WithKey(Key {
                    place: KeyPlace::Json(Cow::Borrowed("/ClientRequestToken")),
                    actions: &[],
                    retention_minutes: 60,
                    contract: RemoteContract::Unverified,
                }),
                "the token names the version: the same value again is ignored, another one refused; how long is not published",
                read(
                    "https://docs.aws.amazon.com/sdk-for-kotlin/api/latest/secretsmanager/aws.sdk.kotlin.services.secretsmanager.model/-put-secret-value-request/client-request-token.html",
                ),
            ),
        ),
        named(
            &["ecs.*.amazonaws.com"],
            &["AmazonEC2ContainerServiceV20141113.RunTask"],
            line(
                POST,
                &["/"],
                Repeat::WithKey(Key {
                    place: KeyPlace::Json(Cow::Borrowed("/clientToken")),
                    actions: &[],
                    retention_minutes: 60,
                    contract: RemoteContract::Unverified,
                }),
                "the first result is answered again and other parameters are refused, but for less than 24 hours where the task ends sooner",
                read(
                    "https://docs.aws.amazon.com/AmazonECS/latest/APIReference/ECS_Idempotency.html",
                ),
            ),
        ),
        line(
            &["GET", "HEAD", "POST"],
            &["/"],
            NOT,
            "the query protocol performs its `Action` by GET as well as by POST",
            read("https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html"),
        ),
        with_action(line(
            &[],
            ALL,
            NOT,
            "the address of a queue takes an `Action` too, by GET as well",
            read(
                "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-making-api-requests.html",
            ),
        )),
        line(
            POST,
            ALL,
            NOT,
            "a client token differs by service: name its place on a route of its own",
            read("https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html"),
        ),
    ],
    note: "`idempotency = { generate = true }` on the route adds a token to the operations with a key that come without one; the libraries of AWS send one by themselves. Keys count by region, because the service does.",
};

pub(super) const CLOUDFLARE: Preset = Preset {
    name: "cloudflare",
    title: "Cloudflare API",
    hosts: &["api.cloudflare.com"],
    path: Some("/client/v4/**"),
    attach: Attach::Bearer,
    secret: "an API token",
    source: read("https://developers.cloudflare.com/fundamentals/api/how-to/make-api-calls/"),
    mints: &[
        Mint::Path("/client/v4/user/tokens/**"),
        Mint::Path("/client/v4/accounts/*/tokens/**"),
        Mint::Path("/client/v4/accounts/*/access/service_tokens/**"),
        Mint::Path("/client/v4/zones/*/access/service_tokens/**"),
        Mint::Path("/client/v4/accounts/*/r2/temp-access-credentials"),
    ],
    lines: &[line(
        POST,
        ALL,
        NOT,
        "creates; no key contract is published",
        source("https://developers.cloudflare.com/api/"),
    )],
    note: "",
};

pub(super) const GOOGLE_CLOUD: Preset = Preset {
    name: "google-cloud",
    title: "Google Cloud APIs",
    hosts: &["*.googleapis.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "an access token; it is short-lived, so name a source that renews it",
    source: read("https://cloud.google.com/docs/authentication/rest"),
    mints: &[
        Mint::Host("apikeys.googleapis.com"),
        Mint::Host("iam.googleapis.com"),
        Mint::Host("iamcredentials.googleapis.com"),
        Mint::Host("secretmanager.googleapis.com"),
        Mint::Host("secretmanager.*.rep.googleapis.com"),
        Mint::Host("sts.googleapis.com"),
    ],
    lines: &[
        at(
            &["compute.googleapis.com"],
            line(
                POST,
                &[
                    "/compute/v1/projects/*/zones/*/instances",
                    "/compute/v1/projects/*/zones/*/instances/bulkInsert",
                    "/compute/v1/projects/*/zones/*/instances/*/start",
                ],
                REQUEST_ID,
                "a second request with one id is ignored; neither how long nor a comparison of the request is promised",
                read(
                    "https://cloud.google.com/python/docs/reference/compute/1.10.1/google.cloud.compute_v1.types.InsertInstanceRequest",
                ),
            ),
        ),
        at(
            &["alloydb.googleapis.com"],
            line(
                POST,
                &["/v1/projects/*/locations/*/clusters"],
                REQUEST_ID,
                "a second request with one id is ignored for at least 60 minutes; no comparison of the request is promised",
                read(
                    "https://cloud.google.com/alloydb/docs/reference/rest/v1/projects.locations.clusters/create",
                ),
            ),
        ),
        line(
            POST,
            ALL,
            NOT,
            "not every service takes a request id; those that do choose how long it counts",
            read("https://google.aip.dev/155"),
        ),
    ],
    note: "Google promises that a repeated request id has no second effect, but not that the request is compared (contract K-1), so an unknown outcome is reconciled. Who takes that for enough writes `idempotency = { query = \"requestId\", contract = \"verified\", retention = \"1h\", generate = true }` on a route for the methods that take one. Operations of Google Cloud are named by paths, which `job` does not follow.",
};

/// An id is to be a UUID, as those of the broker's own are outside of header fields.
const REQUEST_ID: Repeat = Repeat::WithKey(Key {
    place: KeyPlace::Query(Cow::Borrowed("requestId")),
    actions: &[],
    retention_minutes: 60,
    contract: RemoteContract::Unverified,
});
