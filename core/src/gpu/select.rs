//! Choosing a driver: `AQUEDUCT_DRIVER` and `AQUEDUCT_CUDA_LIBRARY`.

use std::path::Path;
use std::sync::Arc;

use cuda_driver_sys::DriverTable;

use super::device::Device;
use super::driver::Driver;
use crate::env::{DriverChoice, Env};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::DriverFaults;

/// The software device's table, where the program links one.
pub type SoftwareTable = fn() -> DriverTable;

impl Driver {
    /// The driver the environment asks for.
    ///
    /// `AQUEDUCT_DRIVER=cuda` takes the NVIDIA driver, from `AQUEDUCT_CUDA_LIBRARY` if that is set; `soft` takes the
    /// software device `soft`; `auto`, the default, takes the NVIDIA driver if it loads, initialises and has a device,
    /// and the software device otherwise. `AQUEDUCT_HANDLE` is the policy for
    /// handles of buffers that name none. `AQUEDUCT_FAULTS` puts faults around its calls. [`Driver::reason`] says which
    /// driver was chosen and why.
    ///
    /// # Errors
    /// An unknown `AQUEDUCT_DRIVER`; an error of the chosen driver; for `auto` without a software device, the error of
    /// the NVIDIA driver.
    pub fn select(soft: Option<SoftwareTable>) -> Result<Self> {
        let env = Env::get()?;
        let driver = select(env.driver, env.cuda_library.as_deref(), soft)?.with_handle_policy(env.handle);
        Ok(match env.faults.as_ref().filter(|plan| !plan.driver.is_empty()) {
            Some(plan) => driver.with_hooks(Arc::new(DriverFaults::new(plan.driver.clone()))),
            None => driver,
        })
    }
}

fn select(choice: DriverChoice, library: Option<&Path>, soft: Option<SoftwareTable>) -> Result<Driver> {
    match choice {
        DriverChoice::Cuda => Ok(Driver::load(library)?.because("AQUEDUCT_DRIVER=cuda".into())),
        DriverChoice::Soft => match soft {
            Some(table) => Ok(Driver::software(table())?.because("AQUEDUCT_DRIVER=soft".into())),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                "Driver::select",
                "AQUEDUCT_DRIVER=soft, but this program was built without the software device; unset it or use the \
                 aqueduct command",
            )),
        },
        DriverChoice::Auto => automatic(library, soft),
    }
}

fn automatic(library: Option<&Path>, soft: Option<SoftwareTable>) -> Result<Driver> {
    let real = Driver::load(library).and_then(|driver| match Device::count(&driver)? {
        0 => Err(Error::new(ErrorKind::Unsupported, "Driver::select", "the driver has no device")),
        n => Ok(driver.because(format!("the NVIDIA driver has {n} device{}", if n == 1 { "" } else { "s" }))),
    });
    match (real, soft) {
        (Ok(driver), _) => Ok(driver),
        (Err(error), None) => Err(error),
        (Err(error), Some(table)) => {
            Ok(Driver::software(table())?.because(format!("no usable NVIDIA driver: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_uint};

    use cuda_driver_sys::CUresult;

    use super::*;
    use crate::gpu::driver::Provenance;

    unsafe extern "C" fn init(_: c_uint) -> CUresult {
        CUresult::CUDA_SUCCESS
    }

    unsafe extern "C" fn version(out: *mut c_int) -> CUresult {
        // SAFETY: the caller gives a live output.
        unsafe { *out = 12_040 };
        CUresult::CUDA_SUCCESS
    }

    fn soft() -> DriverTable {
        DriverTable { cuInit: init, cuDriverGetVersion: version, ..DriverTable::not_supported() }
    }

    fn nowhere() -> Option<&'static Path> {
        Some(Path::new("/nonexistent/libcuda.so.1"))
    }

    #[test]
    fn auto_falls_back_to_software_and_says_why() {
        let driver = select(DriverChoice::Auto, nowhere(), Some(soft)).unwrap();
        assert_eq!(*driver.provenance(), Provenance::Software);
        assert_eq!(driver.version(), (12, 4));
        assert!(driver.reason().contains("/nonexistent/libcuda.so.1"), "{}", driver.reason());
    }

    #[test]
    fn without_software_the_real_drivers_error_is_given() {
        for choice in [DriverChoice::Auto, DriverChoice::Cuda] {
            let error = select(choice, nowhere(), None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains("/nonexistent/libcuda.so.1"), "{error}");
        }
        assert!(select(DriverChoice::Cuda, nowhere(), Some(soft)).is_err(), "cuda never means software");
        assert_eq!(select(DriverChoice::Soft, None, None).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_table_that_does_not_initialise_is_refused() {
        let error = Driver::from_table(DriverTable::not_supported(), "nothing").unwrap_err();
        assert_eq!((error.kind(), error.op()), (ErrorKind::Unsupported, "cuInit"));
    }
}
