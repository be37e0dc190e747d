//! Element types and reductions of `aqueduct perf` and `aqueduct plan run`, each by its name on the command line.

use crate::support::{PerfFile, aqueduct, perf, run, temporary};

/// Names on the command line and in results, with the bytes of an element.
const TYPES: [(&str, &str, u64); 12] = [
    ("int8", "i8", 1),
    ("uint8", "u8", 1),
    ("int32", "i32", 4),
    ("uint32", "u32", 4),
    ("int64", "i64", 8),
    ("uint64", "u64", 8),
    ("half", "f16", 2),
    ("float", "f32", 4),
    ("double", "f64", 8),
    ("bfloat16", "bf16", 2),
    ("f8e4m3", "f8e4m3", 1),
    ("f8e5m2", "f8e5m2", 1),
];
const REDUCTIONS: [&str; 5] = ["sum", "prod", "min", "max", "avg"];

/// One size, checked and timed once.
const SMALL: [&str; 8] = ["-b", "1200", "-e", "1200", "-n", "1", "-w", "0"];

/// Asserts that all rows are right and of this type and reduction.
#[track_caller]
fn right(file: &PerfFile, (_, ty, bytes): (&str, &str, u64), op: Option<&str>) {
    assert!(!file.rows.is_empty());
    for row in &file.rows {
        assert_eq!((&row["wrong"], &row["datatype"]), (&0.into(), &ty.into()), "{row}");
        assert_eq!(row["reduction"].as_str(), op, "{row}");
        assert_eq!(row["count"].as_u64(), Some(row["size_bytes"].as_u64().unwrap() / bytes), "{row}");
    }
}

/// Every type with a collective that reduces, each with every reduction in its turn.
#[test]
fn every_type_is_reduced() {
    for (index, ty) in TYPES.into_iter().enumerate() {
        let operation = ["all-reduce", "reduce-scatter", "reduce", "reduce-scatter-v"][index % 4];
        let op = REDUCTIONS[index % 5];
        let arguments = [&[operation, "-d", ty.0, "-o", op][..], &SMALL, &["-J", "-"]].concat();
        right(&PerfFile::parse(&perf("2", &arguments).exited(0).stdout), ty, Some(op));
    }
}

/// Those that the other collectives lacked.
#[test]
fn other_types_are_moved() {
    for (operation, ty) in [
        ("all-gather", TYPES[0]),
        ("all-to-all", TYPES[8]),
        ("broadcast", TYPES[10]),
        ("send-recv", TYPES[5]),
        ("scatter", TYPES[11]),
        ("point-to-point", TYPES[4]),
    ] {
        let arguments = [&[operation, "-d", ty.0][..], &SMALL, &["-J", "-"]].concat();
        right(&PerfFile::parse(&perf("2", &arguments).exited(0).stdout), ty, None);
    }
}

/// A ring of three ranks rounds sums and products on the way; averages are divided where the last rank has added its data.
#[test]
fn plans_run_with_every_type() {
    let path = temporary("ring.json");
    let name = path.to_str().unwrap();
    let made = run(&mut aqueduct(&["plan", "new", "all-reduce", "-n", "3", "-a", "ring"])).exited(0).stdout;
    std::fs::write(&path, made).unwrap();
    let job = |more: &[&str]| {
        let begin = ["run", "--no-prefix", "-n", "3", "--", "aqueduct", "plan", "run", name];
        run(&mut aqueduct(&[&begin[..], more].concat()))
    };
    for (index, ty) in TYPES.into_iter().enumerate() {
        let op = REDUCTIONS[(index + 3) % 5];
        let arguments = [&["-d", ty.0, "-o", op][..], &SMALL, &["-J", "-"]].concat();
        right(&PerfFile::parse(&job(&arguments).exited(0).stdout), ty, Some(op));
    }
    job(&["-d", "int16"]).exited(2).says(&["'int16'", "uint64, half, float, double"]);
    job(&["-o", "mean"]).exited(2).says(&["'mean'", "sum, prod, min, max, avg"]);
    std::fs::remove_file(&path).unwrap();
}

/// On the device, too: small types, large ones and those with reductions of their own.
#[test]
fn the_device_checks_other_types() {
    for (index, op) in [(10, "sum"), (8, "avg"), (1, "prod"), (4, "max")] {
        let arguments = ["all-reduce", "-d", TYPES[index].0, "-o", op, "--check-by", "device", "-J", "-"];
        let file = PerfFile::parse(&perf("2", &[&arguments[..], &SMALL].concat()).exited(0).stdout);
        right(&file, TYPES[index], Some(op));
        assert_eq!(file.header["parameters"]["checked"], "by the device, samples by the host");
    }
}

/// A barrier has one row: a time, and neither a size nor a bandwidth nor anything to check.
#[test]
fn a_barrier_has_one_time() {
    for (ranks, more) in [("3", &[][..]), ("2", &["-G", "2"]), ("1", &[])] {
        let file = PerfFile::parse(
            &perf(ranks, &[&["barrier", "-n", "4", "-J", "-"], more].concat()).exited(0).stdout,
        );
        let [row] = &file.rows[..] else { panic!("{:?}", file.rows) };
        assert!(row["time_p50_us"].as_f64() > Some(0.0) || ranks == "1", "{row}");
        for absent in ["size_bytes", "count", "bus_bandwidth_gb_s", "wrong", "datatype"] {
            assert!(row[absent].is_null(), "{absent}: {row}");
        }
    }
    let table = perf("2", &["barrier"]).exited(0).stdout;
    assert_eq!(table.lines().last(), Some("# Out of bounds values : N/A (not checked)"), "{table}");
    let row = crate::support::rows(&table);
    assert_eq!((row.len(), row[0][0], row[0][2], row[0][4]), (1, "-", "none", "barrier"), "{table}");
    run(&mut aqueduct(&["perf", "barrier", "-d", "half"])).exited(2).says(&["unexpected argument '-d'"]);
}
