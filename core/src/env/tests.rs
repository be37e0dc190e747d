//! Values of variables, and those of a process without any.

use super::variables::VARIABLES;
use super::*;

fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(n, v)| (format!("{PREFIX}{n}"), (*v).to_owned())).collect()
}

#[test]
fn defaults_and_values() {
    let env = Env::parse(&of(&[])).unwrap();
    assert_eq!((env.driver, env.scratch_bytes, env.timeout.as_secs()), (DriverChoice::Auto, 1 << 30, 60));
    assert_eq!(env.log, LogSpec { level: log::LevelFilter::Warn, parts: vec![], exclude: false });
    let env = Env::parse(&of(&[
        ("DRIVER", "Soft"),
        ("TIMEOUT", "1.5"),
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("SOCKET_FAMILY", "6"),
        ("HANDLE", "ipc"),
        ("LOG", "debug,^net,^gpu"),
        ("UNIQUE_ID", ""),
    ]))
    .unwrap();
    assert_eq!((env.driver, env.timeout), (DriverChoice::Soft, Duration::from_millis(1500)));
    assert_eq!(env.handle, HandlePolicy::Legacy);
    assert!(!env.multicast && Env::parse(&of(&[("MULTICAST", "1")])).unwrap().multicast);
    assert_eq!((env.rank, env.world_size, env.socket_family), (Some(3), Some(4), SocketFamily::V6));
    assert_eq!(
        (env.log.parts.as_slice(), env.log.exclude),
        (&["net".to_owned(), "gpu".to_owned()][..], true)
    );
    assert_eq!(env.unique_id, None);
    let never =
        [("0", None), ("2.5", Some(Duration::from_millis(2500))), ("2m", Some(Duration::from_secs(120)))];
    for (text, expected) in never {
        assert_eq!(Env::parse(&of(&[("PEER_TIMEOUT", text)])).unwrap().peer_timeout, expected);
    }
}

#[test]
fn a_bad_value_names_the_variable_and_what_it_takes() {
    for (name, value, hint) in [
        ("DRIVER", "gpu", "auto or cuda or soft"),
        ("HANDLE", "vmm", "auto or fabric or fd or ipc"),
        ("TIMEOUT", "-1", "positive number of seconds"),
        ("TIMEOUT", "soon", "positive number of seconds"),
        ("TIMEOUT", "nan", "positive number of seconds"),
        ("PEER_TIMEOUT", "never", "0 for never"),
        ("PEER_TIMEOUT", "1.249", "at least 1.25 seconds, or 0 for never"),
        ("MESSAGE_EAGER", "0", "from 1 to 65536"),
        ("MESSAGE_EAGER", "65537", "from 1 to 65536"),
        ("MESSAGE_SHARED_MEMORY", "no", "1 or 0"),
        ("MULTICAST", "yes", "0 or 1"),
        ("ETHERNET_STAGING", "1048575", "from 1048576 to"),
        ("WORLD_SIZE", "0", "from 1 to"),
        ("RANK", "4294967296", "whole number"),
        ("LOG", "loud", "off, error"),
        ("LOG", "info,net,^gpu", "all selected or all excluded"),
        ("SCRATCH_BYTES", "1G", "number of bytes"),
        ("SCRATCH_BYTES", "0", "number of bytes, at least 1"),
        ("IB_PORT", "0", "from 1 to 255"),
        ("IB_PORT", "256", "from 1 to 255"),
        ("IB_PKEY", "65536", "from 0 to 65535"),
        ("IB_SL", "16", "from 0 to 15"),
        ("IB_TC", "256", "from 0 to 255"),
        ("IB_TIMEOUT", "32", "from 1 to 31"),
        ("IB_RETRY_CNT", "8", "from 0 to 7"),
    ] {
        let error = Env::parse(&of(&[(name, value)])).unwrap_err().to_string();
        assert!(error.contains(&format!("{PREFIX}{name}={value}")) && error.contains(hint), "{error}");
    }
    assert!(Env::parse(&of(&[("RANK", "4"), ("WORLD_SIZE", "4")])).is_err());
}

#[test]
fn secrets_stay_hidden() {
    let env = Env::parse(&of(&[("UNIQUE_ID", "c0ffee")])).unwrap();
    assert!(!format!("{env:?}").contains("c0ffee"));
}

/// What `aqueduct info --env` lists is what a process without variables gets.
#[test]
fn listed_defaults_are_those_of_the_code() {
    let plain = Env::parse(&of(&[])).unwrap();
    // Others are descriptions: lists of names, or what happens without the variable.
    let values = VARIABLES.iter().filter(|variable| !variable.default.contains(['(', ' ', ',']));
    let mut compared = 0;
    for variable in values {
        let given = BTreeMap::from([(variable.name.to_owned(), variable.default.to_owned())]);
        let env = Env::parse(&given).unwrap_or_else(|error| panic!("{}: {error}", variable.name));
        assert_eq!(format!("{env:?}"), format!("{plain:?}"), "{}", variable.name);
        compared += 1;
    }
    assert!(compared > 10, "{compared} of {}", VARIABLES.len());
}
