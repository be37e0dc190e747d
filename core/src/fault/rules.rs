//! The text form of faults.

use std::time::Duration;

use cuda_driver_sys::{CUresult, FUNCTIONS};

use super::driver::{Calls, DriverFault};
use super::net::{LinkKind, NetAction, NetFault};
use crate::error::{Error, Result};

/// Results that a rule can name. Others are given by their number (cuda.h, `CUresult`).
const RESULTS: [(&str, CUresult); 11] = [
    ("OUT_OF_MEMORY", CUresult::CUDA_ERROR_OUT_OF_MEMORY),
    ("INVALID_VALUE", CUresult::CUDA_ERROR_INVALID_VALUE),
    ("DEVICE_UNAVAILABLE", CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE),
    ("NO_DEVICE", CUresult::CUDA_ERROR_NO_DEVICE),
    ("ECC_UNCORRECTABLE", CUresult::CUDA_ERROR_ECC_UNCORRECTABLE),
    ("ILLEGAL_ADDRESS", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
    ("LAUNCH_FAILED", CUresult::CUDA_ERROR_LAUNCH_FAILED),
    ("NOT_PERMITTED", CUresult::CUDA_ERROR_NOT_PERMITTED),
    ("NOT_SUPPORTED", CUresult::CUDA_ERROR_NOT_SUPPORTED),
    ("SYSTEM_NOT_READY", CUresult::CUDA_ERROR_SYSTEM_NOT_READY),
    ("UNKNOWN", CUresult::CUDA_ERROR_UNKNOWN),
];

/// Largest number of bytes that one rule may change, lose or repeat.
const MAX_BYTES: usize = 4096;

/// The rules in `AQUEDUCT_FAULTS`, separated by `;`, with words separated by `:` (`docs/faults.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Faults of the driver.
    pub driver: Vec<DriverFault>,
    /// Faults of the network.
    pub net: Vec<NetFault>,
    /// Determines how bytes are corrupted and where fragments and gathered reads end.
    pub seed: u64,
}

impl Rules {
    /// Parses the rules.
    ///
    /// # Errors
    /// `InvalidUsage`, which quotes the first invalid rule and says what is expected there.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rules = Self::default();
        for rule in text.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            let read = match rule.split_once(':') {
                Some(("driver", rest)) => driver(rest).map(|fault| rules.driver.push(fault)),
                Some(("net", rest)) => net(rest).map(|fault| rules.net.push(fault)),
                _ => match rule.strip_prefix("seed=") {
                    Some(value) => number(value).map(|value| rules.seed = value),
                    None => Err("rules begin with driver:, net: or seed=".to_owned()),
                },
            };
            read.map_err(|why| {
                Error::usage(
                    "faults",
                    format!("`{rule}` in AQUEDUCT_FAULTS: {why}; docs/faults.md lists the valid rules"),
                )
            })?;
        }
        Ok(rules)
    }
}

type Read<T> = std::result::Result<T, String>;

/// `FUNCTION:N[+]=RESULT`, `allocation:N[+]=RESULT`, `lost:N=RESULT` or `memory:BYTES`.
fn driver(text: &str) -> Read<DriverFault> {
    let (calls, rest) = text.split_once(':').ok_or("a driver rule is FUNCTION:N=RESULT or memory:BYTES")?;
    if calls == "memory" {
        return Ok(DriverFault::memory_budget(number(rest)?));
    }
    let (nth, result) =
        rest.split_once('=').ok_or("a result is missing, as in cuMemCreate:3=OUT_OF_MEMORY")?;
    let result = result_of(result)?;
    let (nth, sticky) = nth.strip_suffix('+').map_or((nth, false), |nth| (nth, true));
    let nth = match number(nth)? {
        0 => return Err("calls are counted from 1".to_owned()),
        nth => nth,
    };
    let calls = match calls {
        "lost" => return Ok(DriverFault::lost_device(nth, result)),
        "allocation" => Calls::Allocations,
        name if FUNCTIONS.iter().any(|function| function.symbol == name) => Calls::Function(name.to_owned()),
        name => return Err(format!("{name} is not a driver function that aqueduct calls")),
    };
    let fault = DriverFault::nth(calls, nth, result);
    Ok(if sticky { fault.and_after() } else { fault })
}

/// `[from=RANK:][to=RANK:][on=KIND:][after=BYTES:|frames=N:]ACTION`.
fn net(text: &str) -> Read<NetFault> {
    let (places, action) = text.rsplit_once(':').unwrap_or(("", text));
    let (name, value) = action.split_once('=').map_or((action, None), |(name, value)| (name, Some(value)));
    let bytes = || match value.map_or(Ok(1), number)? {
        count @ 1..=4096 => Ok(count as usize),
        _ => Err(format!("1 to {MAX_BYTES} bytes can be lost, repeated or changed")),
    };
    let action = match (name, value) {
        ("drop", None) => NetAction::Drop,
        ("truncate", None) => NetAction::Truncate,
        ("stall", None) => NetAction::Stall,
        ("fragment", None) => NetAction::Fragment,
        ("coalesce", None) => NetAction::Coalesce,
        ("delay", Some(ms)) => NetAction::Delay(Duration::from_millis(number(ms)?)),
        ("lose", _) => NetAction::Lose(bytes()?),
        ("duplicate", _) => NetAction::Duplicate(bytes()?),
        ("corrupt", _) => NetAction::Corrupt(bytes()?),
        _ => {
            return Err(format!(
                "{action} is not one of drop, truncate, stall, fragment, coalesce, delay=MS, lose=BYTES, duplicate=BYTES, corrupt=BYTES"
            ));
        }
    };
    let mut fault = NetFault::new(action);
    for place in places.split(':').filter(|place| !place.is_empty()) {
        let (name, value) = place.split_once('=').ok_or(format!("{place} has no value"))?;
        let rank = || u32::try_from(number(value)?).map_err(|_| format!("{value} is not a rank"));
        fault = match name {
            "from" => fault.from_rank(rank()?),
            "to" => fault.to_rank(rank()?),
            "after" => fault.after_bytes(number(value)?),
            "frames" => fault.after_frames(number(value)?),
            "on" => fault.on(match value {
                "rendezvous" => LinkKind::Rendezvous,
                "bootstrap" => LinkKind::Bootstrap,
                "control" => LinkKind::Control,
                "data" => LinkKind::Data,
                "messages" => LinkKind::Messages,
                _ => return Err("on= takes rendezvous, bootstrap, control, data or messages".to_owned()),
            }),
            _ => return Err(format!("{name} is not one of from, to, on, after, frames")),
        };
    }
    Ok(fault)
}

fn number(text: &str) -> Read<u64> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number"))
}

fn result_of(text: &str) -> Read<CUresult> {
    let name = text.strip_prefix("CUDA_ERROR_").unwrap_or(text);
    if let Some((_, result)) = RESULTS.iter().find(|(known, _)| *known == name) {
        return Ok(*result);
    }
    match text.parse() {
        Ok(code @ 1..) => Ok(CUresult(code)),
        _ => {
            let names: Vec<&str> = RESULTS.iter().map(|(known, _)| *known).collect();
            Err(format!("{text} is not an error's number and not one of {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let oom = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let rules = Rules::parse(
            "driver:cuMemCreate:3=OUT_OF_MEMORY; driver:allocation:2+=2;driver:lost:40=CUDA_ERROR_ECC_UNCORRECTABLE; \
             driver:memory:4096;net:from=1:to=0:on=control:after=64:drop;net:frames=2:corrupt=8;net:delay=20;net:fragment;\
             net:on=messages:coalesce;seed=7;",
        )
        .unwrap();
        let driver = [
            DriverFault::nth(Calls::Function("cuMemCreate".into()), 3, oom),
            DriverFault::nth(Calls::Allocations, 2, oom).and_after(),
            DriverFault::lost_device(40, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE),
            DriverFault::memory_budget(4096),
        ];
        let net = [
            NetFault::new(NetAction::Drop).from_rank(1).to_rank(0).on(LinkKind::Control).after_bytes(64),
            NetFault::new(NetAction::Corrupt(8)).after_frames(2),
            NetFault::new(NetAction::Delay(Duration::from_millis(20))),
            NetFault::new(NetAction::Fragment),
            NetFault::new(NetAction::Coalesce).on(LinkKind::Messages),
        ];
        assert_eq!(rules, Rules { driver: driver.into(), net: net.into(), seed: 7 });
        assert_eq!(Rules::parse("").unwrap(), Rules::default());
    }

    #[test]
    fn what_cannot_be_read_is_quoted_with_what_it_could_be() {
        for (text, words) in [
            ("cuMemCreate:1=2", "begin with driver:"),
            ("driver:cuMemCreat:1=2", "cuMemCreat is not a driver function"),
            ("driver:cuMemCreate:0=2", "counted from 1"),
            ("driver:cuMemCreate:1", "a result is missing"),
            ("driver:cuMemCreate:1=SUCCESS", "OUT_OF_MEMORY"),
            ("driver:cuMemCreate:1=0", "not an error's number"),
            ("driver:memory:much", "`much` is not a whole number"),
            ("net:from=1:explode", "explode is not one of drop"),
            ("net:rank=1:drop", "rank is not one of from, to"),
            ("net:on=tcp:drop", "rendezvous, bootstrap, control, data or messages"),
            ("net:lose=0", "1 to 4096"),
            ("net:drop=1", "drop=1 is not one of"),
            ("seed=x", "not a whole number"),
        ] {
            let error = Rules::parse(text).unwrap_err();
            assert!(error.message().contains(words) && error.message().contains(text), "{error}");
        }
    }
}
