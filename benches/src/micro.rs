//! CPU time of a start: kernel texts, modules, bootstrap, communicator. `cargo run --release -p aqueduct-benches`
//!
//! Prints one line per subject: median, minimum and maximum over its rounds, in microseconds. Needs no GPU: modules and
//! communicators are made on the software device.

use std::time::{Duration, Instant};

use aqueduct::bootstrap::{self, Bootstrap};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{Context, Device, Driver, Module, Stream};
use aqueduct::{Deadline, Result};
use aqueduct_ptx::{Target, instantiate};

const ROUNDS: usize = 15;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    println!("# {:<48} {:>10} {:>10} {:>10}", "subject", "median us", "min", "max");
    let target = Target::new(90);
    let text = |kernel| instantiate(kernel, target, &[]).map(|instance| instance.text).unwrap_or_default();
    report("instantiate channel.ptx", || {
        text("channel");
        Ok(())
    })?;
    report("instantiate packet.ptx", || {
        text("packet");
        Ok(())
    })?;

    let driver = Driver::software(cuda_soft::driver_table())?;
    let context = Context::new(&Device::new(&driver, 0)?)?;
    let (channel, packet) = (text("channel"), text("packet"));
    report("load channel.ptx on the software device", || Module::load_ptx(&context, &channel).map(drop))?;
    report("load packet.ptx on the software device", || Module::load_ptx(&context, &packet).map(drop))?;
    report("create a stream", || Stream::new(&context).map(drop))?;
    for ranks in [2, 8, 32] {
        report(&format!("all_gather of 64 bytes, {ranks} local ranks"), || {
            together(ranks, |bootstrap| bootstrap.all_gather(&[7; 64], Deadline::after(PATIENCE)).map(drop))
        })?;
    }
    for ranks in [2, 8] {
        report(&format!("communicator of {ranks} ranks, made and closed"), || {
            together(ranks, |bootstrap| {
                let device = Device::new(&driver, bootstrap.rank() % Device::count(&driver)?)?;
                let deadline = Deadline::after(PATIENCE);
                Communicator::new(
                    bootstrap,
                    &Context::new(&device)?,
                    CommunicatorConfig::default(),
                    deadline,
                )?
                .close(deadline)
            })
        })?;
    }
    Ok(())
}

/// Times `subject` and prints its line.
fn report(name: &str, mut subject: impl FnMut() -> Result<()>) -> Result<()> {
    subject()?;
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        subject()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!("  {name:<48} {:>10.1} {:>10.1} {:>10.1}", times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
    Ok(())
}

/// Runs `work` on `ranks` threads, one rank each.
fn together(ranks: u32, work: impl Fn(&dyn Bootstrap) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            bootstrap::local(ranks).into_iter().map(|rank| scope.spawn(move || work(&rank))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}
