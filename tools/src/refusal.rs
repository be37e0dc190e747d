//! Usage errors: arguments, environment variables and combinations of them that this command refuses. It ends with code 2
//! then, whether clap found the error or this code did; 1 is for jobs that fail.

use std::fmt;

/// The exit code of every usage error.
pub(crate) const CODE: u8 = 2;

/// A sentence that names what is refused, and what to use instead.
#[derive(Debug)]
pub(crate) struct Refusal(String);

impl Refusal {
    pub(crate) fn new(sentence: impl fmt::Display) -> Self {
        Self(sentence.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Returns a [`Refusal`] with the formatted sentence from the calling function.
macro_rules! refuse {
    ($($sentence:tt)*) => {
        return Err($crate::refusal::Refusal::new(format_args!($($sentence)*)).into())
    };
}
pub(crate) use refuse;

/// Whether `error` is a usage error.
pub(crate) fn is_refusal(error: &anyhow::Error) -> bool {
    error.chain().any(<dyn std::error::Error>::is::<Refusal>)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_refusal_is_found_behind_its_context() {
        let refused = || -> anyhow::Result<()> { refuse!("no {}", "way") };
        assert_eq!(refused().unwrap_err().to_string(), "no way");
        assert!(is_refusal(&refused().context("while trying").unwrap_err()));
        assert!(!is_refusal(&anyhow::anyhow!("the job failed")));
    }
}
