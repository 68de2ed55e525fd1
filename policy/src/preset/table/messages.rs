//! Services that send messages and take payments.

use super::super::{Attach, Key, Mint, Preset, Repeat};
use super::{ALL, NOT, POST, line, read};
use journal::contract::{KeyPlace, RemoteContract};
use std::borrow::Cow;

pub(super) const SENDGRID: Preset = Preset {
    name: "sendgrid",
    title: "Twilio SendGrid",
    hosts: &["api.sendgrid.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "an API key",
    source: read(
        "https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/authentication",
    ),
    mints: &[Mint::Path("/v3/api_keys/**")],
    lines: &[line(
        POST,
        ALL,
        NOT,
        "sends mail and creates; no key contract is published",
        read(
            "https://www.twilio.com/docs/sendgrid/for-developers/sending-email/api-getting-started",
        ),
    )],
    note: "",
};

pub(super) const STRIPE: Preset = Preset {
    name: "stripe",
    title: "Stripe API",
    hosts: &["api.stripe.com", "files.stripe.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "a secret or restricted key",
    source: read("https://docs.stripe.com/api/authentication"),
    mints: &[Mint::Path("/v1/ephemeral_keys")],
    lines: &[
        line(
            POST,
            &["/v1/**"],
            Repeat::WithKey(Key {
                place: KeyPlace::Header(Cow::Borrowed("idempotency-key")),
                actions: &[],
                retention_minutes: 24 * 60,
                contract: RemoteContract::Verified,
            }),
            "the first status and content are kept at least 24 hours and answered again, errors included; parameters are compared",
            read("https://docs.stripe.com/api/idempotent_requests"),
        ),
        line(
            &["POST", "DELETE"],
            &["/v2/**"],
            NOT,
            "v2 takes keys, but performs failed work again and may answer differently",
            read("https://docs.stripe.com/api/idempotent_requests"),
        ),
    ],
    note: "",
};

pub(super) const TWILIO: Preset = Preset {
    name: "twilio",
    title: "Twilio REST API",
    hosts: &["api.twilio.com"],
    path: None,
    attach: Attach::Basic,
    secret: "`ACCOUNT_SID:AUTH_TOKEN` or `API_KEY_SID:API_KEY_SECRET`",
    source: read("https://www.twilio.com/docs/usage/requests-to-twilio"),
    mints: &[
        Mint::Path("/2010-04-01/Accounts/*/Keys*"),
        Mint::Path("/2010-04-01/Accounts/*/SigningKeys*"),
        Mint::Path("/2010-04-01/Accounts*"),
        Mint::Path("/2010-04-01/Accounts/*"),
    ],
    lines: &[line(
        POST,
        ALL,
        NOT,
        "sends messages, places calls and creates; no key contract is published",
        read(
            "https://github.com/twilio/twilio-go/blob/v1.7.2/rest/api/v2010/docs/AccountsMessagesApi.md",
        ),
    )],
    note: "",
};
