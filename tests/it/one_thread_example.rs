/// One process, one thread, a rank on each device: sums the `inputs` of all ranks, and returns what each has.
fn sum(driver: &Driver, inputs: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
    let (timeout, count) = (Duration::from_secs(60), inputs[0].len());
    let contexts: Vec<Context> = (0..inputs.len() as u32)
        .map(|rank| Context::new(&Device::of_rank(driver, rank)?))
        .collect::<Result<_>>()?;
    // ncclCommInitAll
    let comms = Communicator::local(&contexts, CommunicatorConfig::from_env()?, timeout)?;
    // Ranks wait for each other in here: for all of them at the same time, as between ncclGroupStart and ncclGroupEnd.
    let variants = [(Element::F32, Reduction::Sum)];
    let config = CollectiveConfig::default().with_variants(variants);
    let reduces = together(&comms, |comm| Collective::prepare(comm, Kind::AllReduce, config.clone(), timeout))?;
    // Memory before launches: allocating may wait for kernels, and those wait for the kernels of other ranks.
    let mut ranks = Vec::new();
    for (comm, input) in comms.iter().zip(inputs) {
        let buffer = Arc::new(GpuBuffer::new(comm.context(), count * 4)?);
        buffer.upload(0, input, timeout)?;
        ranks.push((Stream::new(comm.context())?, buffer));
    }
    // Launches wait for nobody: one after the other.
    for (reduce, (stream, buffer)) in reduces.iter().zip(&ranks) {
        let all = buffer.slice(..)?;
        reduce.launch(stream, &all, &all, count, Element::F32, Reduction::Sum)?;
    }
    let mut sums = Vec::new();
    for (stream, buffer) in &ranks {
        stream.synchronize(timeout)?;
        let mut sum = vec![0.0; count];
        buffer.download(0, &mut sum, timeout)?;
        sums.push(sum);
    }
    together(&comms, |comm| comm.close(timeout))?;
    Ok(sums)
}
