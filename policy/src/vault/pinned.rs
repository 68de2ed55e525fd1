//! A key in memory: at one place, kept out of swap where the system allows it.

use super::Key;
use zeroize::{Zeroize as _, Zeroizing};

/// A key at a fixed place of the heap. It is zeroed before the place is given back.
pub(super) struct Pinned(Box<Key>);

impl Pinned {
    /// Takes a copy of a key.
    pub(super) fn new(key: &Key) -> Self {
        let mut place = Box::new(Zeroizing::new([0; 32]));
        // Locked before the key is there, so that no page with it was ever on its way out.
        pin(&place);
        place.copy_from_slice(&**key);
        Self(place)
    }

    /// The key.
    pub(super) fn key(&self) -> &Key {
        &self.0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.zeroize();
        // The page stays locked: another key may lie on it, and locks are not counted.
    }
}

/// Keeps the page of a key out of swap. The limit on locked memory may not allow it; then the key
/// is as safe as the system's swap is.
fn pin(place: &Key) {
    let start: *const [u8; 32] = &raw const **place;
    #[expect(unsafe_code, reason = "mlock takes an address; it reads and writes nothing there")]
    // SAFETY: the range is one live allocation, and mlock does not touch its content.
    let locked = unsafe { rustix::mm::mlock(start.cast_mut().cast(), size_of::<Key>()) };
    if let Err(error) = locked {
        tracing::debug!(%error, "the vault's key can't be kept out of swap");
    }
}
