//! The files of all operations of `aqueduct perf` have one schema.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::{PerfFile, aqueduct, perf, run, temporary};

/// Runs an operation with both kinds of files. Returns the parsed JSON Lines and the text of the CSV.
fn both(ranks: &str, arguments: &[&str]) -> (PerfFile, String) {
    let (json, csv) = (temporary("schema.jsonl"), temporary("schema.csv"));
    let files = ["-J", json.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
    let arguments = [arguments, &files].concat();
    match arguments[0] {
        operation if is_alone(operation) => {
            run(&mut aqueduct(&[&["perf"][..], &arguments].concat())).exited(0)
        }
        _ => perf(ranks, &arguments).exited(0),
    };
    let texts = [&json, &csv].map(|path| {
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::remove_file(path).unwrap();
        text
    });
    let [json, csv] = texts;
    (PerfFile::parse(&json), csv)
}

const OPERATIONS: [(&str, &[&str]); 15] = [
    ("2", &["all-reduce", "-b", "8", "-e", "8", "-n", "2"]),
    ("2", &["put", "-b", "8", "-e", "8", "-n", "2"]),
    ("2", &["get", "-b", "8", "-e", "8", "-n", "2"]),
    ("2", &["ll16", "-b", "8", "-e", "8", "-n", "10"]),
    ("2", &["signal", "-n", "10"]),
    ("2", &["write", "-t", "Ethernet", "-m", "host", "-b", "8", "-e", "8", "-n", "2", "-W", "2"]),
    ("2", &["write-lat", "-t", "Ethernet", "-m", "host", "-b", "8", "-e", "8", "-n", "2"]),
    ("2", &["flush", "-t", "CudaIpc", "-b", "8", "-e", "8", "-n", "2"]),
    ("1", &["fifo", "-T", "2", "-n", "20", "-r", "2"]),
    ("2", &["port-lat", "-t", "CudaIpc", "-b", "8", "-e", "8", "-n", "2", "-r", "2"]),
    ("1", &["bootstrap", "-n", "2,3"]),
    ("2", &["startup"]),
    ("1", &["message", "-n", "10"]),
    ("1", &["message-rate", "-e", "8", "-n", "100"]),
    ("1", &["message-read", "-e", "4K", "-n", "10", "-W", "2"]),
];

/// Whether it starts its processes itself, without a launcher and devices.
fn is_alone(operation: &str) -> bool {
    operation == "bootstrap" || operation.starts_with("message")
}

#[test]
fn all_operations_share_header_rows_and_footer() {
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let (mut headers, mut footers, mut columns) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (ranks, arguments) in OPERATIONS {
        let (file, csv) = both(ranks, arguments);
        let header = &file.header;
        assert_eq!((&header["schema"], &header["schema_version"]), (&"aqueduct-perf".into(), &1.into()));
        assert_eq!(header["operation"], arguments[0]);
        assert_eq!(header["aqueduct_version"], env!("CARGO_PKG_VERSION"));
        let time = header["time_utc"].as_str().unwrap();
        assert!(time.len() == 20 && time.starts_with("20") && time.ends_with('Z'), "{time}");
        let machine = &header["machines"][0];
        assert!(!machine["cpu"].as_str().unwrap().is_empty() && machine["cores"].as_u64().unwrap() > 0);
        if !is_alone(arguments[0]) {
            assert_eq!(header["ranks"].as_array().unwrap().len().to_string(), ranks, "{header}");
            assert_eq!(
                (&header["driver"]["software"], &header["driver"]["version"]),
                (&true.into(), &Value::Null)
            );
            assert_eq!(machine["gpus"].as_array().unwrap().len().to_string(), ranks, "{header}");
        }
        let options = header["parameters"].as_object().unwrap();
        assert!(!options.is_empty() || arguments[0] == "startup", "{header}");
        let footer = file.footer.as_ref().expect("the run came to its end");
        assert_eq!(footer["rows"].as_u64(), Some(file.rows.len() as u64));
        assert!(!file.rows.is_empty());
        for row in &file.rows {
            for name in
                ["time_p50_us", "time_min_us", "time_max_us", "time_p99_us", "time_p99_9_us", "time_mean_us"]
            {
                assert!(row[name].as_f64().is_some_and(|time| time >= 0.0), "{name} of {row}");
            }
            assert!(
                row["samples"].as_u64().unwrap() > 0 && row["calls_per_sample"].as_u64().unwrap() > 0,
                "{row}"
            );
        }
        columns.insert(same_in_csv(&file, &csv));
        headers.insert(keys(header));
        footers.insert(keys(footer));
    }
    assert_eq!(
        (headers.len(), footers.len(), columns.len()),
        (1, 1, 1),
        "{headers:#?} {footers:#?} {columns:#?}"
    );
}

/// Asserts that the comma-separated values hold what the JSON Lines do. Returns the names of the columns.
#[track_caller]
fn same_in_csv(file: &PerfFile, csv: &str) -> String {
    let comment = |line: &str| -> Value { serde_json::from_str(line.strip_prefix("# ").unwrap()).unwrap() };
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(comment(lines[0])["parameters"], file.header["parameters"]);
    assert_eq!(comment(lines[lines.len() - 1])["rows"].as_u64(), Some(file.rows.len() as u64));
    let (names, rows) = (lines[1], &lines[2..lines.len() - 1]);
    assert_eq!(rows.len(), file.rows.len(), "{csv}");
    for (line, row) in rows.iter().zip(&file.rows) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), names.split(',').count(), "{line}");
        for (name, cell) in names.split(',').zip(cells) {
            let equal = match &row[name] {
                Value::Null => cell.is_empty(),
                Value::String(text) => text == cell,
                // Reading a number rounds.
                number => {
                    let (json, csv) = (number.as_f64().unwrap(), cell.parse::<f64>().unwrap());
                    (json - csv).abs() <= 1e-12 * json.abs()
                }
            };
            assert!(equal, "{name} is {cell} instead of {}", row[name]);
        }
        let listed: BTreeSet<&str> = names.split(',').chain(["record"]).collect();
        assert!(row.as_object().unwrap().keys().all(|name| listed.contains(name.as_str())), "{row}");
    }
    names.to_owned()
}
