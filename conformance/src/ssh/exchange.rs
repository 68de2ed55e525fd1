//! The key exchange in both roles (RFC 4253 sections 7 and 8, RFC 8731).

use super::wire::{Cipher, Fields, Packets, Text, malformed, message, random};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{Digest, SHA256, digest};
use ring::signature::Ed25519KeyPair;
use std::io;

/// What a server shows of itself.
pub(super) struct Host<'a> {
    /// Its host key as the protocol carries it.
    pub(super) blob: &'a [u8],
    /// The key that it signs with: a good server's is the same.
    pub(super) signs: &'a Ed25519KeyPair,
    pub(super) version: &'a str,
}

/// The one offer of both roles.
fn offer() -> io::Result<Vec<u8>> {
    let mut own = Text::new(message::KEXINIT);
    own.0.extend_from_slice(&random::<16>()?);
    let cipher = "aes256-gcm@openssh.com";
    for list in [
        "curve25519-sha256",
        "ssh-ed25519",
        cipher,
        cipher,
        "hmac-sha2-256",
        "hmac-sha2-256",
        "none",
        "none",
        "",
        "",
    ] {
        own = own.string(list);
    }
    Ok(own.bool(false).u32(0).0)
}

/// One end's part of the agreement.
struct Part {
    private: EphemeralPrivateKey,
    public: Vec<u8>,
}

impl Part {
    fn new() -> io::Result<Self> {
        let rng = ring::rand::SystemRandom::new();
        let private = EphemeralPrivateKey::generate(&X25519, &rng).map_err(failed)?;
        let public = private.compute_public_key().map_err(failed)?.as_ref().to_vec();
        Ok(Self { private, public })
    }

    fn agree(self, point: &[u8]) -> io::Result<Vec<u8>> {
        let peer = UnparsedPublicKey::new(&X25519, point);
        agree_ephemeral(self.private, &peer, <[u8]>::to_vec).map_err(failed)
    }
}

fn failed(_: ring::error::Unspecified) -> io::Error {
    io::Error::other("no key agreement")
}

/// What both ends have in common: the hash is that of the first exchange, and so the session's id.
struct Common {
    secret: Vec<u8>,
    hash: Digest,
}

impl Common {
    /// RFC 4253 section 7.2.
    fn key(&self, letter: u8) -> Digest {
        let base = Text(Vec::new()).mpint(&self.secret).0;
        digest(&SHA256, &[&base, self.hash.as_ref(), &[letter], self.hash.as_ref()].concat())
    }

    fn cipher(&self, key: u8, iv: u8) -> io::Result<Cipher> {
        let iv = self.key(iv).as_ref().get(..12).map(<[u8]>::to_vec).unwrap_or_default();
        Cipher::new(self.key(key).as_ref(), &iv)
    }

    fn to_server(&self) -> io::Result<Cipher> {
        self.cipher(b'C', b'A')
    }

    fn to_client(&self) -> io::Result<Cipher> {
        self.cipher(b'D', b'B')
    }
}

/// The server's side, with a client of that version line.
pub(super) async fn as_server(
    packets: &mut Packets,
    client: &str,
    host: &Host<'_>,
) -> io::Result<()> {
    let own = offer()?;
    packets.send(&own).await?;
    let theirs = packets.read().await?;
    let init = expect(packets, message::KEX_INIT).await?;
    let point = Fields(&init).string()?;
    let part = Part::new()?;
    let public = part.public.clone();
    let secret = part.agree(point)?;
    let hashed = Text(Vec::new()).string(client).string(host.version).string(theirs).string(own);
    let hashed = hashed.string(host.blob).string(point).string(&public).mpint(&secret).0;
    let common = Common { secret, hash: digest(&SHA256, &hashed) };
    let signature = host.signs.sign(common.hash.as_ref());
    let signature = Text(Vec::new()).string("ssh-ed25519").string(signature.as_ref()).0;
    let reply = Text::new(message::KEX_REPLY).string(host.blob).string(public).string(signature);
    packets.send(&reply.0).await?;
    packets.send(&[message::NEWKEYS]).await?;
    packets.sealing = Some(common.to_client()?);
    // Whoever can't follow says so here, or goes away.
    expect(packets, message::NEWKEYS).await?;
    packets.opening = Some(common.to_server()?);
    Ok(())
}

/// The client's side. Whom it talks to is not its question: it believes every key.
pub(super) async fn as_client(packets: &mut Packets, own: &str, server: &str) -> io::Result<()> {
    let offered = offer()?;
    packets.send(&offered).await?;
    let theirs = packets.read().await?;
    let part = Part::new()?;
    let public = part.public.clone();
    packets.send(&Text::new(message::KEX_INIT).string(&public).0).await?;
    let reply = expect(packets, message::KEX_REPLY).await?;
    let mut fields = Fields(&reply);
    let (key, point) = (fields.string()?, fields.string()?);
    let secret = part.agree(point)?;
    let hashed = Text(Vec::new()).string(own).string(server).string(offered).string(theirs);
    let hashed = hashed.string(key).string(&public).string(point).mpint(&secret).0;
    let common = Common { secret, hash: digest(&SHA256, &hashed) };
    packets.send(&[message::NEWKEYS]).await?;
    packets.sealing = Some(common.to_server()?);
    expect(packets, message::NEWKEYS).await?;
    packets.opening = Some(common.to_client()?);
    Ok(())
}

/// The fields of the message that has to come now.
async fn expect(packets: &mut Packets, kind: u8) -> io::Result<Vec<u8>> {
    let payload = packets.read().await?;
    match payload.split_first() {
        Some((first, rest)) if *first == kind => Ok(rest.to_vec()),
        Some(_) | None => Err(malformed("another message than the exchange's next")),
    }
}
