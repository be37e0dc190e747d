//! Options that an operation has no use for. They are refused: whoever gives one expects something of it.
//!
//! clap knows which options a command has, and which two of them contradict each other. The commands share options, and what
//! an option does may depend on others, so this table says the rest: every option acts unless a rule here names it.

use anyhow::Result;
use clap::ArgMatches;
use clap::parser::ValueSource;

use super::write::Memory;
use crate::refusal::refuse;

/// Options that do nothing in some operations.
struct Rule {
    /// Their names on the command line, without dashes.
    options: &'static [&'static str],
    operations: &'static [&'static str],
    /// With which other options. Given the value of an option as text.
    if_: fn(&Given<'_>) -> bool,
    why: &'static str,
}

const PACKETS: &[&str] = &["ll8", "ll16", "ll128"];
const MESSAGES: &[&str] = &["ll8", "ll16", "ll128", "signal"];
const CHANNELS: &[&str] = &["put", "get", "ll8", "ll16", "ll128", "signal"];
const COLLECTIVES: &[&str] = &[
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send-recv",
    "all-to-all-v",
    "all-gather-v",
    "reduce-scatter-v",
    "point-to-point",
];
const CHECKED: &[&str] = &[
    "put",
    "get",
    "ll8",
    "ll16",
    "ll128",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send-recv",
    "all-to-all-v",
    "all-gather-v",
    "reduce-scatter-v",
    "point-to-point",
    "write",
    "read",
    "write-lat",
    "flush",
];
const VARIABLE: &[&str] = &["all-to-all-v", "all-gather-v", "reduce-scatter-v", "point-to-point"];
const CONNECTIONS: &[&str] = &["write", "read", "write-lat", "flush"];
const ONE_BY_ONE: &[&str] = &["write-lat", "flush"];
const TABLES: &[&str] = &[
    "put",
    "get",
    "ll8",
    "ll16",
    "ll128",
    "signal",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send-recv",
    "all-to-all-v",
    "all-gather-v",
    "reduce-scatter-v",
    "point-to-point",
    "write",
    "read",
    "write-lat",
    "flush",
    "barrier",
    "fifo",
    "port-put",
    "port-lat",
    "message",
    "message-rate",
    "message-read",
];

const ALWAYS: fn(&Given<'_>) -> bool = |_| true;

const RULES: &[Rule] = &[
    Rule {
        options: &["min-bytes", "max-bytes", "step-factor", "step-bytes"],
        operations: &["signal"],
        if_: ALWAYS,
        why: "a signal has no size",
    },
    Rule {
        options: &["check", "check-by"],
        operations: &["signal"],
        if_: ALWAYS,
        why: "a signal carries no data to check",
    },
    Rule {
        options: &["op", "datatype"],
        operations: CHANNELS,
        if_: ALWAYS,
        why: "it moves bytes and reduces nothing; these options are for collectives",
    },
    Rule {
        options: &["op"],
        operations: &[
            "all-gather",
            "all-to-all",
            "broadcast",
            "gather",
            "scatter",
            "send-recv",
            "all-to-all-v",
            "all-gather-v",
            "point-to-point",
        ],
        if_: ALWAYS,
        why: "it reduces nothing; this option is for all-reduce, reduce-scatter, reduce-scatter-v and reduce",
    },
    Rule {
        options: &["root"],
        operations: &[
            "put",
            "get",
            "ll8",
            "ll16",
            "ll128",
            "signal",
            "all-reduce",
            "all-gather",
            "reduce-scatter",
            "all-to-all",
            "send-recv",
            "all-to-all-v",
            "all-gather-v",
            "reduce-scatter-v",
            "point-to-point",
        ],
        if_: ALWAYS,
        why: "it has no root; this option is for broadcast, reduce, gather and scatter",
    },
    Rule {
        options: &["explain"],
        operations: CHANNELS,
        if_: ALWAYS,
        why: "it has one algorithm; this option is for collectives",
    },
    Rule {
        options: &["explain"],
        operations: VARIABLE,
        if_: ALWAYS,
        why: "it has one algorithm; this option is for collectives whose parts are alike",
    },
    Rule {
        options: &["local-register"],
        operations: CHANNELS,
        if_: ALWAYS,
        why: "a channel's memory is always registered; this option is for collectives",
    },
    Rule {
        options: &["local-register"],
        operations: VARIABLE,
        if_: ALWAYS,
        why: "it needs buffers that were shown to the peers; this option is for collectives whose parts are alike",
    },
    Rule {
        options: &["graph"],
        operations: MESSAGES,
        if_: ALWAYS,
        why: "its kernel bounces all messages of a sample in one launch",
    },
    Rule {
        options: &["bidirectional"],
        operations: MESSAGES,
        if_: ALWAYS,
        why: "its message bounces, one direction after the other; this option is for put and get",
    },
    Rule {
        options: &["bidirectional"],
        operations: COLLECTIVES,
        if_: ALWAYS,
        why: "all ranks send and receive at the same time; this option is for put and get",
    },
    Rule {
        options: &["check"],
        operations: PACKETS,
        if_: |given| given.value::<u32>("check") > Some(1),
        why: "it checks once what has arrived after the last sample; use 0 or 1",
    },
    Rule {
        options: &["check-by"],
        operations: CHECKED,
        if_: |given| given.value("check") == Some(0_u32),
        why: "with --check 0 nothing is checked",
    },
    Rule {
        options: &["check-by"],
        operations: CONNECTIONS,
        if_: |given| {
            let source = given.value::<Memory>("memory");
            source == Some(Memory::Host) && given.value("peer-memory").unwrap_or(Memory::Host) == Memory::Host
        },
        why: "data in host memory is always made and compared by the host",
    },
    Rule {
        options: &["window", "connections"],
        operations: ONE_BY_ONE,
        if_: ALWAYS,
        why: "one write is on its way at a time",
    },
    Rule {
        options: &["pattern"],
        operations: ONE_BY_ONE,
        if_: ALWAYS,
        why: "it measures pairs, one direction at a time",
    },
    Rule {
        options: &["window", "into"],
        operations: &["message", "message-rate"],
        if_: ALWAYS,
        why: "only reads have a window and a destination",
    },
    Rule { options: &["mix"], operations: ONE_BY_ONE, if_: ALWAYS, why: "it measures one size at a time" },
    Rule {
        options: &["fenced"],
        operations: &["port-lat"],
        if_: |given| given.value("transport") != Some(aqueduct::comm::Transport::CudaIpc),
        why: "it changes the bare loop, which runs over CudaIpc only",
    },
    Rule {
        options: &["stats"],
        operations: TABLES,
        if_: |given| given.stdout_is_taken(),
        why: "standard output belongs to a file, so there is no table",
    },
];

/// Refuses the first option on the command line that does nothing. `matches` are those of `aqueduct perf`.
pub(crate) fn refuse_idle_options(command: &str, matches: &ArgMatches) -> Result<()> {
    let Some((operation, given)) = Given::of(matches) else { return Ok(()) };
    for option in given.options() {
        if let Some(why) = given.idle(&operation, &option) {
            refuse!("--{option} does nothing in {command} {operation}: {why}");
        }
    }
    Ok(())
}

/// The options of an operation.
struct Given<'m>(&'m ArgMatches);

impl<'m> Given<'m> {
    /// The operation and its options, or `None` if none was named.
    fn of(matches: &'m ArgMatches) -> Option<(String, Self)> {
        if let Some((operation, options)) = matches.subcommand() {
            return Some((operation.to_owned(), Self(options)));
        }
        let operation = matches.try_get_one::<super::args::Operation>("operation").ok()??;
        Some((operation.name(), Self(matches)))
    }

    /// Names of the options on the command line.
    fn options(&self) -> Vec<String> {
        let explicit = |id: &&str| self.0.value_source(id) == Some(ValueSource::CommandLine);
        self.0.ids().map(clap::Id::as_str).filter(explicit).map(|id| id.replace('_', "-")).collect()
    }

    /// Why `option` does nothing in `operation`, if so.
    fn idle(&self, operation: &str, option: &str) -> Option<&'static str> {
        let fits = |rule: &&Rule| rule.operations.contains(&operation) && rule.options.contains(&option);
        RULES.iter().filter(fits).find(|rule| (rule.if_)(self)).map(|rule| rule.why)
    }

    fn value<T: Clone + Send + Sync + 'static>(&self, option: &str) -> Option<T> {
        self.0.try_get_one::<T>(&option.replace('-', "_")).ok().flatten().cloned()
    }

    fn stdout_is_taken(&self) -> bool {
        let file = |option| self.value::<std::path::PathBuf>(option);
        ["json", "csv", "dump"].into_iter().filter_map(file).any(|path| path == std::path::Path::new("-"))
    }
}
