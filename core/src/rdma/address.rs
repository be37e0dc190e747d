//! Address of a queue pair, which the other end needs to connect to it.
#![forbid(unsafe_code)]

use super::gid::{Gid, GidKind};
use crate::wire::{Reader, WireError, WireResult, Writer};

/// A queue pair as its peer addresses it. Exchanged out of band; hostile until [`decode`](Self::decode) has checked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAddress {
    /// Its number, 24 bits, not 0 (0 and 1 belong to the management of the fabric).
    pub qp_number: u32,
    /// The number of the first packet it sends, 24 bits.
    pub psn: u32,
    /// Its port's local identifier, 0 on Ethernet.
    pub lid: u16,
    /// Its port's address and what kind it is of, if it has one.
    pub gid: Option<(Gid, GidKind)>,
    /// The MTU of its port or of its settings, in bytes.
    pub mtu: u32,
    /// How many reads and atomics it can serve at once.
    pub max_read_atomic: u8,
}

const VERSION: u16 = 1;
const BITS_24: u32 = 0x00ff_ffff;

impl QpAddress {
    /// Appends the wire form.
    pub fn encode(&self, w: &mut Writer) {
        let (gid, kind) = self.gid.unwrap_or_default();
        w.u16(VERSION).u32(self.qp_number).u32(self.psn).u16(self.lid);
        w.u8(self.gid.is_some().into()).raw(&gid.0).u32(kind.0).u32(self.mtu).u8(self.max_read_atomic);
    }

    /// Takes what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// Names the fields that are out of range: numbers of more than 24 bits, an MTU that does not exist, no address at all.
    pub fn decode(r: &mut Reader<'_>) -> WireResult<Self> {
        let invalid = |what| Err(WireError::Invalid { what });
        r.version(VERSION)?;
        let (qp_number, psn, lid) = (r.u32()?, r.u32()?, r.u16()?);
        let (has_gid, gid, kind) = (r.bool()?, Gid(r.array()?), GidKind(r.u32()?));
        let (mtu, max_read_atomic) = (r.u32()?, r.u8()?);
        if !(2..=BITS_24).contains(&qp_number) {
            return invalid("queue pair number");
        }
        if psn > BITS_24 {
            return invalid("packet sequence number");
        }
        if has_gid == gid.is_zero() {
            return invalid("GID");
        }
        if !has_gid && lid == 0 {
            return invalid("address: neither a LID nor a GID");
        }
        if !matches!(mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return invalid("MTU");
        }
        Ok(Self { qp_number, psn, lid, gid: has_gid.then_some((gid, kind)), mtu, max_read_atomic })
    }
}

impl Default for GidKind {
    fn default() -> Self {
        Self::INFINIBAND
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> QpAddress {
        QpAddress {
            qp_number: BITS_24,
            psn: BITS_24,
            lid: 0,
            gid: Some((Gid([7; 16]), GidKind::ROCE_V2)),
            mtu: 1024,
            max_read_atomic: 16,
        }
    }

    fn again(address: &QpAddress) -> WireResult<QpAddress> {
        let mut w = Writer::new();
        address.encode(&mut w);
        let mut r = Reader::new(w.as_bytes());
        let decoded = QpAddress::decode(&mut r)?;
        r.finish()?;
        Ok(decoded)
    }

    #[test]
    fn round_trip_and_refusal() {
        let good = address();
        let by_lid = QpAddress { gid: None, lid: 3, ..good };
        assert_eq!(again(&good), Ok(good));
        assert_eq!(again(&by_lid), Ok(by_lid));
        for bad in [
            QpAddress { qp_number: 0, ..good },
            QpAddress { qp_number: 1 << 24, ..good },
            QpAddress { psn: 1 << 24, ..good },
            QpAddress { gid: Some((Gid([0; 16]), GidKind::ROCE_V2)), ..good },
            QpAddress { gid: None, lid: 0, ..good },
            QpAddress { mtu: 1500, ..good },
        ] {
            assert!(again(&bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_in_range(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(address) = QpAddress::decode(&mut Reader::new(&bytes)) {
                prop_assert_eq!(again(&address), Ok(address));
            }
        }
    }
}
