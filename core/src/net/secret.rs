//! The job's 256-bit secret and the one thing done with it: HMAC-SHA256 (RFC 2104, FIPS 198-1).

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::error::{Error, Result};

/// Size of a proof in bytes.
pub(super) const MAC_BYTES: usize = 32;

/// 256 random bits that only the ranks of one job know. `Debug` does not show them.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A fresh secret from the kernel's generator.
    pub fn random() -> Result<Self> {
        Ok(Self(random_bytes()?))
    }

    /// The secret with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for the unique id that carries them to the other ranks.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The text form, 64 hexadecimal digits, to pass in an environment variable or a private file.
    pub fn to_text(&self) -> SecretText {
        SecretText::new(to_hex(&self.0))
    }

    /// Another secret for a narrower use. Knowing it says nothing about this one.
    #[must_use]
    pub fn derive(&self, label: &str) -> Self {
        Self(self.mac(&[b"aqueduct derive v1", label.as_bytes()]))
    }

    /// HMAC-SHA256 of the concatenated parts.
    pub(super) fn mac(&self, parts: &[&[u8]]) -> [u8; MAC_BYTES] {
        self.hmac(parts).finalize().into_bytes().into()
    }

    /// Whether `proof` is the MAC of the concatenated parts; takes the same time whatever differs.
    pub(super) fn verify(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.hmac(parts).verify_slice(proof).is_ok()
    }

    /// The same for a MAC of which only the first bytes are sent, at least half of them.
    pub(super) fn verify_start(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        proof.len() >= MAC_BYTES / 2 && self.hmac(parts).verify_truncated_left(proof).is_ok()
    }

    fn hmac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        keyed(&self.0, parts)
    }
}

/// From 64 hexadecimal digits, as [`Secret::to_text`] gives them and `openssl rand -hex 32` prints them.
impl FromStr for Secret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        from_hex(text.trim()).map(Self).ok_or_else(|| {
            let wanted = "a secret is 64 hexadecimal digits, as `openssl rand -hex 32` prints them";
            Error::usage("Secret", format!("{wanted}; this text of {} bytes is none", text.trim().len()))
        })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Text that contains a secret, such as a unique id on its way through a launcher. `Debug` does not show it, there is no
/// `Display`, and so no error or log line can quote it by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Marks `text` as secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever passes it on.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretText({} bytes)", self.0.len())
    }
}

/// `bytes` as hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The `N` bytes of `2 * N` hexadecimal digits; `None` for anything else.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    from_hex_text(text)?.try_into().ok()
}

/// The bytes of an even number of hexadecimal digits; `None` for anything else.
pub(crate) fn from_hex_text(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

fn keyed(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| hmac.update(part));
    hmac
}

/// `N` random bytes from getrandom(2).
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0_u8; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        // SAFETY: the pointer and length describe `rest`, which lives across the call.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(Error::system("getrandom", "cannot get random bytes from the kernel", error));
                }
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4231_vectors() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let mac = |key: &[u8], data: &[u8]| hex(&keyed(key, &[data]).finalize().into_bytes());
        // Test cases 1, 2 and 6 (a key longer than the block).
        assert_eq!(
            mac(&[0x0b; 20], b"Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            mac(b"Jefe", b"what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            mac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn secrets_differ_verify_and_do_not_print() {
        let (a, b) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(a.expose(), b.expose());
        assert_ne!(a.derive("x").expose(), a.derive("y").expose());
        let proof = a.mac(&[b"one", b"two"]);
        assert!(a.verify(&[b"onetwo"], &proof));
        assert!(!b.verify(&[b"onetwo"], &proof) && !a.verify(&[b"onetwo"], &proof[..31]));
        assert_eq!(format!("{a:?}"), "Secret(..)");
        let back: Secret = format!(" {}\n", a.to_text().expose()).parse().unwrap();
        assert_eq!(back.expose(), a.expose());
        for bad in ["", &a.to_text().expose()[1..], &"g".repeat(64), &"\u{e9}".repeat(32)] {
            let error = bad.parse::<Secret>().unwrap_err();
            assert!(error.message().contains("openssl rand -hex 32"), "{error}");
            assert!(
                bad.is_empty() || !error.message().contains(bad),
                "a secret with a mistake is one too: {error}"
            );
        }
    }

    #[test]
    fn the_first_half_of_a_proof_is_enough_and_less_is_not() {
        let secret = Secret::from_bytes([3; 32]);
        let proof = secret.mac(&[b"x"]);
        for length in [MAC_BYTES / 2, 24, MAC_BYTES] {
            assert!(secret.verify_start(&[b"x"], &proof[..length]));
            assert!(!secret.verify_start(&[b"y"], &proof[..length]));
        }
        for length in [0, 1, MAC_BYTES / 2 - 1] {
            assert!(!secret.verify_start(&[b"x"], &proof[..length]), "{length} bytes can be guessed");
        }
    }
}
