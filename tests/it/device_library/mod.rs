//! The examples of the device library: kernels in handwritten PTX, linked with its functions, and in CUDA C++, as
//! nvcc compiled them with its header.

mod documented;
mod grid;
mod handles;
mod ring;
mod semaphore;
mod trigger;

use aqueduct::device::device_library;
use aqueduct::gpu::{Context, Function, Module};

use crate::group::Machine;

/// An example in both forms.
struct Example {
    /// Name of its kernel.
    kernel: &'static str,
    handwritten: &'static str,
    /// PTX that nvcc made from the C++.
    compiled: &'static str,
}

macro_rules! example {
    ($name:literal) => {
        $crate::device_library::Example {
            kernel: $name,
            handwritten: include_str!(concat!("../../../ptx/examples/", $name, ".ptx")),
            compiled: include_str!(concat!("../../../ptx/examples/nvcc/", $name, ".sm_75.ptx")),
        }
    };
}
use example;

impl Example {
    /// The kernel in both forms: linked with the library, and compiled by nvcc.
    fn load(&self, context: &Context) -> [(&'static str, Function); 2] {
        let library = device_library(context).unwrap();
        let parts = [("the example", self.handwritten), ("the device library", library.as_str())];
        let linked = Module::link_ptx(context, &parts).unwrap();
        // CUDA 13 compiles for compute capability 7.5 and newer.
        let compiled = Module::load_ptx(context, self.compiled).unwrap();
        [("handwritten", linked), ("compiled", compiled)]
            .map(|(form, module)| (form, module.function(self.kernel).unwrap()))
    }
}

mod soft {
    use super::{Machine, documented, grid, handles, ring, semaphore, trigger};

    #[test]
    fn the_documented_kernel() {
        documented::says(Machine::Software, "device_library::soft::the_documented_kernel");
    }

    #[test]
    fn ring_all_gather_of_two() {
        ring::gathers(Machine::Software, 2, "device_library::soft::ring_all_gather_of_two");
    }

    #[test]
    fn ring_all_gather_of_four() {
        ring::gathers(Machine::Software, 4, "device_library::soft::ring_all_gather_of_four");
    }

    #[test]
    fn a_ring_that_lacks_a_rank() {
        ring::one_is_missing(Machine::Software, "device_library::soft::a_ring_that_lacks_a_rank");
    }

    #[test]
    fn custom_trigger() {
        trigger::answers(Machine::Software, "device_library::soft::custom_trigger");
    }

    #[test]
    fn every_handle() {
        handles::arrive(Machine::Software, "device_library::soft::every_handle");
    }

    #[test]
    fn a_grid_meets() {
        grid::meets(Machine::Software, "device_library::soft::a_grid_meets");
    }

    #[test]
    fn a_grid_barrier_after_an_early_end() {
        grid::is_used_again(Machine::Software, "device_library::soft::a_grid_barrier_after_an_early_end");
    }

    #[test]
    fn a_semaphore_alone() {
        semaphore::alone(Machine::Software, "device_library::soft::a_semaphore_alone");
    }
}

mod hardware {
    use super::{Machine, documented, grid, handles, ring, semaphore, trigger};

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn the_documented_kernel() {
        documented::says(Machine::Hardware, "device_library::hardware::the_documented_kernel");
    }

    #[test]
    #[ignore = "needs two NVIDIA GPUs joined by NVLink, or one"]
    fn ring_all_gather_of_two() {
        ring::gathers(Machine::Hardware, 2, "device_library::hardware::ring_all_gather_of_two");
    }

    #[test]
    #[ignore = "needs NVIDIA GPUs joined by NVLink, or one"]
    fn ring_all_gather_of_four() {
        ring::gathers(Machine::Hardware, 4, "device_library::hardware::ring_all_gather_of_four");
    }

    #[test]
    #[ignore = "needs two NVIDIA GPUs joined by NVLink, or one"]
    fn a_ring_that_lacks_a_rank() {
        ring::one_is_missing(Machine::Hardware, "device_library::hardware::a_ring_that_lacks_a_rank");
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn custom_trigger() {
        trigger::answers(Machine::Hardware, "device_library::hardware::custom_trigger");
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn every_handle() {
        handles::arrive(Machine::Hardware, "device_library::hardware::every_handle");
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn a_grid_meets() {
        grid::meets(Machine::Hardware, "device_library::hardware::a_grid_meets");
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn a_grid_barrier_after_an_early_end() {
        grid::is_used_again(Machine::Hardware, "device_library::hardware::a_grid_barrier_after_an_early_end");
    }

    #[test]
    #[ignore = "needs two NVIDIA GPUs joined by NVLink, or one"]
    fn a_semaphore_alone() {
        semaphore::alone(Machine::Hardware, "device_library::hardware::a_semaphore_alone");
    }
}
