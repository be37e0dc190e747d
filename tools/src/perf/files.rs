//! The files that a run writes: opened before anything is measured, with each row written as soon as it is there.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use super::args::Files;
use super::record::{FIELDS, Record};
use crate::refusal::refuse;
use crate::stdout::Stdout;

/// The open files of a run. A rank that writes none has an empty one.
#[derive(Default)]
pub(super) struct Outlets {
    outlets: Vec<Outlet>,
    /// Number of rows so far.
    rows: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// JSON Lines: one object per line.
    Json,
    /// Comma-separated values, with the head and the foot of the JSON Lines behind `# `.
    Csv,
    /// The samples of each row, with the same head and foot.
    Dump,
}

/// Names of the columns of a dump.
const SAMPLE: &str = "row,series,algorithm,place,size_bytes,threads,sample,calls,time_us";

struct Outlet {
    format: Format,
    target: Target,
    path: PathBuf,
}

enum Target {
    Stdout,
    /// A file of which nothing has been written yet. What was in it is still there.
    Opened {
        file: File,
        new: bool,
    },
    Begun(File),
}

/// The name of standard output.
const STDOUT: &str = "-";

impl Outlets {
    /// Opens the files for writing and leaves what they hold until [`begin`](Self::begin).
    ///
    /// Only rank 0 writes. `launched` is the rank that the environment gives this process.
    pub(super) fn open(files: &Files, launched: u32) -> Result<Self> {
        let asked = [
            ("--json", Format::Json, &files.json),
            ("--csv", Format::Csv, &files.csv),
            ("--dump", Format::Dump, &files.dump),
        ];
        let asked: Vec<(&str, Format, &Path)> = asked
            .into_iter()
            .filter_map(|(name, format, path)| Some((name, format, path.as_deref()?)))
            .collect();
        for (index, (name, _, path)) in asked.iter().enumerate() {
            if let Some((before, ..)) = asked[..index].iter().find(|(.., other)| other == path) {
                refuse!("{before} and {name} both name {}; give each a file of its own", path.display());
            }
        }
        if launched != 0 {
            return Ok(Self::default());
        }
        let outlets = asked.into_iter().map(|(_, format, path)| Outlet::open(format, path));
        let outlets = outlets.collect::<Result<Vec<_>>>()?;
        for (index, outlet) in outlets.iter().enumerate() {
            let Some(identity) = outlet.identity()? else { continue };
            for before in &outlets[..index] {
                if before.identity()? == Some(identity) {
                    let [one, other] = [before, outlet].map(|outlet| outlet.path.display());
                    refuse!("{one} and {other} are one file; give each its own");
                }
            }
        }
        Ok(Self { outlets, rows: 0 })
    }

    /// Whether standard output belongs to one of them, so that there is no table.
    pub(super) fn take_stdout(&self) -> bool {
        self.outlets.iter().any(|outlet| matches!(outlet.target, Target::Stdout))
    }

    /// Replaces what the files hold by the head.
    pub(super) fn begin(&mut self, head: &impl Serialize) -> Result<()> {
        let head = serde_json::to_string(head)?;
        self.outlets.iter_mut().try_for_each(|outlet| {
            outlet.begin()?;
            match outlet.format {
                Format::Json => outlet.write(&format!("{head}\n")),
                Format::Csv => outlet.write(&format!("# {head}\n{}\n", FIELDS.join(","))),
                Format::Dump => outlet.write(&format!("# {head}\n{SAMPLE}\n")),
            }
        })
    }

    pub(super) fn row(&mut self, row: &Record) -> Result<()> {
        if self.outlets.is_empty() {
            return Ok(());
        }
        self.rows += 1;
        let (values, number) = (row.values(), self.rows);
        self.outlets.iter_mut().try_for_each(|outlet| {
            outlet.write(&match outlet.format {
                Format::Json => json(&values),
                Format::Csv => csv(&values),
                Format::Dump => dump(number, row, &values),
            })
        })
    }

    /// Writes the foot, which says that the run came to its end.
    pub(super) fn end(&mut self, foot: &impl Serialize) -> Result<()> {
        let foot = serde_json::to_string(foot)?;
        self.outlets.iter_mut().try_for_each(|outlet| match outlet.format {
            Format::Json => outlet.write(&format!("{foot}\n")),
            Format::Csv | Format::Dump => outlet.write(&format!("# {foot}\n")),
        })
    }
}

impl Outlet {
    /// Device and inode of a regular file: other names of it lead to the same.
    fn identity(&self) -> Result<Option<(u64, u64)>> {
        let Target::Opened { file, .. } = &self.target else { return Ok(None) };
        let about = file.metadata().with_context(|| format!("cannot look at {}", self.path.display()))?;
        Ok(about.is_file().then(|| (about.dev(), about.ino())))
    }

    fn open(format: Format, path: &Path) -> Result<Self> {
        if path == Path::new(STDOUT) {
            return Ok(Self { format, target: Target::Stdout, path: path.to_owned() });
        }
        let new = path.symlink_metadata().is_err();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        // Without this flag a pipe that nobody reads could not be opened before somebody does.
        let file = match options.custom_flags(libc::O_NONBLOCK).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => refuse!(
                "cannot write {path}: nobody reads this pipe; start its reader first, such as `cat {path} &`",
                path = path.display()
            ),
            opened => opened.with_context(|| cannot_write(path))?,
        };
        // A reader that is slower than the measurement is waited for.
        // SAFETY: changes only the flags of a description that this process has just opened.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } != 0 {
            return Err(std::io::Error::last_os_error()).with_context(|| cannot_write(path));
        }
        Ok(Self { format, target: Target::Opened { file, new }, path: path.to_owned() })
    }

    fn begin(&mut self) -> Result<()> {
        if let Target::Opened { file, .. } = &self.target {
            // Pipes and devices have no length.
            let regular = file.metadata().with_context(|| cannot_write(&self.path))?.is_file();
            if regular {
                file.set_len(0).with_context(|| cannot_write(&self.path))?;
            }
            let file = file.try_clone().with_context(|| cannot_write(&self.path))?;
            self.target = Target::Begun(file);
        }
        Ok(())
    }

    /// Writes whole lines in one go, unbuffered, so that an interrupted run leaves no half a line.
    fn write(&mut self, lines: &str) -> Result<()> {
        match &mut self.target {
            // Its errors say what cannot be written.
            Target::Stdout => Ok(Stdout.write_all(lines.as_bytes()).and_then(|()| Stdout.flush())?),
            Target::Opened { file, .. } | Target::Begun(file) => {
                file.write_all(lines.as_bytes()).with_context(|| cannot_write(&self.path))
            }
        }
    }
}

impl Drop for Outlet {
    /// Removes a file that was made for a run that did not begin.
    fn drop(&mut self) {
        if matches!(self.target, Target::Opened { new: true, .. }) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// One line with the fields that have a value.
fn json(values: &[(&str, Value)]) -> String {
    let mut line = String::from("{\"record\":\"row\"");
    for (name, value) in values.iter().filter(|(_, value)| !value.is_null()) {
        line += &format!(",\"{name}\":{value}");
    }
    line + "}\n"
}

/// One line with all fields.
fn csv(values: &[(&str, Value)]) -> String {
    values.iter().map(|(_, value)| cell(value)).collect::<Vec<_>>().join(",") + "\n"
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.contains([',', '"', '\n']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A line for each sample of the row with this number, counted from 1.
fn dump(number: u64, row: &Record, values: &[(&str, Value)]) -> String {
    let named = ["series", "algorithm", "place", "size_bytes", "threads"];
    let about: Vec<String> = named
        .iter()
        .filter_map(|name| values.iter().find(|(field, _)| field == name))
        .map(|(_, value)| cell(value))
        .collect();
    let (about, calls) = (about.join(","), row.calls_per_sample);
    let line = |(sample, time): (usize, &f64)| format!("{number},{about},{},{calls},{time}\n", sample + 1);
    row.samples_us.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::record::Place;

    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("aqueduct-files-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn one(json: &Path) -> Files {
        Files { json: Some(json.to_owned()), ..Files::default() }
    }

    #[test]
    fn an_old_file_is_kept_until_a_run_begins_and_a_new_one_removed() {
        let (old, new) = (folder().join("old.jsonl"), folder().join("new.jsonl"));
        std::fs::write(&old, "results of yesterday").unwrap();
        drop((Outlets::open(&one(&old), 0).unwrap(), Outlets::open(&one(&new), 0).unwrap()));
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "results of yesterday");
        assert!(!new.exists());

        let mut outlets = Outlets::open(&one(&old), 0).unwrap();
        outlets.begin(&serde_json::json!({ "record": "header" })).unwrap();
        outlets.row(&Record { size_bytes: Some(8), ..Record::default() }).unwrap();
        // No foot: the run was interrupted.
        let text = std::fs::read_to_string(&old).unwrap();
        drop(outlets);
        assert_eq!(text, std::fs::read_to_string(&old).unwrap());
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["record"], &lines[1]["size_bytes"]), (&"header".into(), &8.into()));
        std::fs::remove_file(old).unwrap();
    }

    #[test]
    fn only_rank_0_opens_files_and_two_formats_need_two_files() {
        let path = Path::new("/nonexistent/folder/file");
        assert!(Outlets::open(&one(path), 1).is_ok());
        let error = format!("{:#}", Outlets::open(&one(path), 0).err().unwrap());
        assert!(error.starts_with("cannot write /nonexistent/folder/file: No such file"), "{error}");
        let both = Files { csv: Some("-".into()), ..one(Path::new("-")) };
        assert!(Outlets::open(&both, 0).err().unwrap().to_string().contains("both name -"));
        // Another name of the same file.
        let (file, link) = (folder().join("one.jsonl"), folder().join("link.csv"));
        std::fs::write(&file, "results of yesterday").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let both = Files { csv: Some(link.clone()), ..one(&file) };
        assert!(Outlets::open(&both, 0).err().unwrap().to_string().contains("are one file"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "results of yesterday");
        [file, link].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_refused_and_another_written() {
        let pipe = folder().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let error = Outlets::open(&one(&pipe), 0).err().unwrap();
        assert!(error.to_string().contains("nobody reads this pipe") && crate::refusal::is_refusal(&error));
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        let mut outlets = loop {
            // The reader may not have opened it yet.
            match Outlets::open(&one(&pipe), 0) {
                Ok(outlets) => break outlets,
                Err(_) => std::thread::yield_now(),
            }
        };
        // More than a pipe holds.
        outlets.begin(&"x".repeat(1 << 20)).unwrap();
        drop(outlets);
        assert_eq!(reader.join().unwrap().len(), (1 << 20) + 3);
        std::fs::remove_file(pipe).unwrap();
    }

    #[test]
    fn comma_separated_values_have_a_cell_for_each_name() {
        let row = Record {
            algorithm: "a \"b\", c".into(),
            place: Some(Place::OutOfPlace),
            time_p50_us: Some(20.5),
            ..Record::default()
        };
        let line = csv(&row.values());
        assert!(line.starts_with("measured,\"a \"\"b\"\", c\",out-of-place,,"), "{line}");
        let line = csv(&Record::default().values());
        assert_eq!(line.matches(',').count(), FIELDS.len() - 1);
        let columns: Vec<&str> = line.trim_end().split(',').collect();
        let at = FIELDS.iter().position(|name| *name == "samples").unwrap();
        assert_eq!((columns[0], columns[at], *columns.last().unwrap()), ("measured", "0", ""));
        let samples = Record { samples_us: vec![1.5, 2.0], calls_per_sample: 4, ..row.clone() };
        let about = "7,measured,\"a \"\"b\"\", c\",out-of-place,,";
        assert_eq!(dump(7, &samples, &row.values()), format!("{about},1,4,1.5\n{about},2,4,2\n"));
        let line = json(&row.values());
        assert!(line.contains(r#""time_p50_us":20.5"#) && !line.contains("null"), "{line}");
    }
}
