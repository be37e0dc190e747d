//! The variables that launchers set, read with errors that name them.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::launcher::{Launch, Launcher, OP, Service};
use crate::error::{Error, Result};

/// The variables, with errors that name them.
pub(super) struct Vars<'a>(pub(super) &'a BTreeMap<String, String>);

impl Vars<'_> {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u32>> {
        let parse =
            |value: &str| value.parse().map_err(|_| invalid(name, value, "it must be a whole number"));
        self.text(name).map(parse).transpose()
    }

    /// The numbers of one family, which is known to be present; `""` names a variable that it does not have.
    pub(super) fn family(
        &self,
        launcher: Launcher,
        local_rank: &str,
        local_size: &str,
        node: &str,
    ) -> Result<Launch> {
        let (rank_name, size_name) = launcher.variables();
        let required = |name: &str, other: &str| {
            self.number(name)?.ok_or_else(|| {
                let text = format!("{name} is not set, but {other} is; {launcher} sets both");
                Error::usage(OP, text)
            })
        };
        let (rank, size) = (required(rank_name, size_name)?, required(size_name, rank_name)?);
        if rank >= size {
            return Err(contradiction(&[(rank_name, rank), (size_name, size)]));
        }
        let (here, on_host) = (self.number(local_rank)?, self.number(local_size)?);
        if let (Some(here), Some(on_host)) = (here, on_host)
            && (here >= on_host || on_host > size)
        {
            return Err(contradiction(&[(local_rank, here), (local_size, on_host), (size_name, size)]));
        }
        if let Some(here) = here.filter(|here| *here >= size) {
            return Err(contradiction(&[(local_rank, here), (size_name, size)]));
        }
        Ok(Launch {
            launcher,
            rank,
            size: Some(size),
            local_rank: here,
            local_size: on_host,
            node: self.number(node)?,
            job: None,
            services: Vec::new(),
        })
    }

    /// The PMIx server, if there is one that knows this process by this rank.
    pub(super) fn pmix_service(&self, rank: u32) -> Result<Option<Service>> {
        let known = self.text("PMIX_NAMESPACE").is_some() && self.number("PMIX_RANK")? == Some(rank);
        Ok(known.then_some(Service::Pmix))
    }

    /// The PMI-1 connection, if there is one that knows this process by this rank.
    pub(super) fn pmi_service(&self, rank: u32) -> Result<Option<Service>> {
        let known = self.number("PMI_RANK")? == Some(rank);
        let fd = self.number("PMI_FD")?.and_then(|fd| i32::try_from(fd).ok());
        Ok(fd.filter(|_| known).map(|fd| Service::Pmi { fd }))
    }
}

pub(super) fn invalid(name: &str, value: &str, wanted: &str) -> Error {
    let shown: String = value.chars().take(80).collect();
    Error::usage(OP, format!("{name}={shown} cannot be read: {wanted}"))
}

pub(super) fn contradiction(values: &[(&str, u32)]) -> Error {
    let all: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let text = format!("the launcher's variables contradict each other: {}", all.join(", "));
    Error::usage(OP, format!("{text}; start the process by its launcher, or unset them"))
}
