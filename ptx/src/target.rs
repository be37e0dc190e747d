//! The compute capability and PTX version that a module is written for.

/// Compute capability and PTX version of an instantiation.
///
/// PTX for `sm_N` is compiled by the driver for any device of that capability or a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Compute capability times ten: 70, 80, 90, 100 ...
    pub sm: u32,
    /// PTX version times ten, as in `.version`.
    pub ptx: u32,
}

/// Capabilities this crate writes code for, each with the first PTX version that knows it.
const SUPPORTED: &[(u32, u32)] =
    &[(70, 60), (75, 63), (80, 70), (86, 71), (89, 78), (90, 78), (100, 86), (120, 87)];

/// PTX versions (times ten) by the CUDA version (as `cuDriverGetVersion` gives it) that introduced them.
const PTX_OF_DRIVER: &[(u32, u32)] = &[
    (9000, 60),
    (9010, 61),
    (9020, 62),
    (10000, 63),
    (10010, 64),
    (10020, 65),
    (11000, 70),
    (11010, 71),
    (11020, 72),
    (11030, 73),
    (11040, 74),
    (11050, 75),
    (11060, 76),
    (11070, 77),
    (11080, 78),
    (12000, 80),
    (12010, 81),
    (12020, 82),
    (12030, 83),
    (12040, 84),
    (12050, 85),
    (12070, 86),
    (12080, 87),
    (12090, 88),
    (13000, 90),
];

/// PTX version from which `fence.acquire` and `fence.release` exist (for sm_90 and up).
const ONE_SIDED_FENCE: u32 = 86;

impl Target {
    /// The target for `sm` with the lowest PTX version in which every form we would use for it exists.
    pub fn new(sm: u32) -> Self {
        let floor = SUPPORTED.iter().rev().find(|&&(known, _)| known <= sm).map_or(60, |&(_, ptx)| ptx);
        Self { sm, ptx: if sm >= 90 { floor.max(ONE_SIDED_FENCE) } else { floor } }
    }

    /// The best target for a device of capability `major.minor` under a driver of this version
    /// (`cuDriverGetVersion`, for example 12080); `None` if either is older than sm_70 or CUDA 9.
    pub fn for_device(major: u32, minor: u32, driver_version: u32) -> Option<Self> {
        let newest = PTX_OF_DRIVER.iter().rev().find(|&&(driver, _)| driver <= driver_version)?.1;
        let &(sm, floor) =
            SUPPORTED.iter().rev().find(|&&(sm, floor)| sm <= major * 10 + minor && floor <= newest)?;
        Some(Self { sm, ptx: Self::new(sm).ptx.min(newest).max(floor) })
    }

    /// The lines every module begins with.
    pub(crate) fn header(self) -> String {
        format!(".version {}.{}\n.target sm_{}\n.address_size 64\n", self.ptx / 10, self.ptx % 10, self.sm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_devices_get_the_newest_form_their_driver_compiles() {
        let of = |major, minor, driver| Target::for_device(major, minor, driver).map(|t| (t.sm, t.ptx));
        assert_eq!(of(9, 0, 13000), Some((90, 86)));
        assert_eq!(of(9, 0, 12040), Some((90, 84)), "before fence.acquire");
        assert_eq!(of(9, 0, 11040), Some((86, 71)), "a driver that knows no sm_90 compiles sm_86 for it");
        assert_eq!(of(7, 0, 11000), Some((70, 60)));
        assert_eq!(of(10, 3, 13000), Some((100, 86)));
        assert_eq!(of(12, 0, 13000), Some((120, 87)));
        assert_eq!(of(6, 1, 13000), None);
        assert_eq!(of(8, 0, 8000), None);
    }
}
