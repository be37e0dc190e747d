//! The device side of aqueduct: the [`abi`] both sides see, the handwritten PTX, and the instantiator that turns a
//! catalog row into the text of one module.
//!
//! ```
//! use aqueduct_ptx::{Target, instantiate};
//!
//! let target = Target::for_device(9, 0, 12080).expect("sm_70 and CUDA 9 or newer");
//! let module = instantiate("channel", target, &[("UNROLL", "4")])?;
//! assert!(module.text.starts_with(".version"));
//! assert_eq!(module.entries[0], "aqueduct_channel_put");
//! # Ok::<(), aqueduct_ptx::TemplateError>(())
//! ```

pub mod abi;
pub mod catalog;
mod forms;
mod fragment;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod oracle;
pub mod plan;
#[cfg(feature = "mutants")]
mod replaced;
mod sources;
mod target;
mod template;

pub use forms::{declarations, functions, header};
pub use fragment::{Direction, Fragment, FragmentConst, FragmentParam};
pub use target::Target;
pub use template::TemplateError;

/// A module ready for `cuModuleLoadData`.
#[derive(Clone, Debug)]
pub struct Instance {
    /// PTX text, without a terminating zero.
    pub text: String,
    /// Symbols of its entry points, in the order of the catalog row.
    pub entries: Vec<String>,
}

/// Names the sources of which texts are written: the fragments, and the code of this crate. Another build of it, which may write
/// another text of the same description, has another name.
pub fn sources() -> String {
    let compiled_in = env!("PTX_SOURCES").to_owned();
    #[cfg(feature = "mutants")]
    let compiled_in = format!("{compiled_in} {:?}", replaced::replaced());
    compiled_in
}

/// Writes the module of catalog row `kernel` for `target`.
///
/// `params` gives values to the row's template parameters; one that is not given has its first allowed value.
///
/// # Errors
/// An unknown row, parameter or value, a target below the row's floor, or a mistake in the template itself
/// (with its file and line).
pub fn instantiate(kernel: &str, target: Target, params: &[(&str, &str)]) -> Result<Instance, TemplateError> {
    let row = find(kernel)?;
    if target.sm < row.min_sm || target.ptx < row.min_ptx {
        return Err(failure(
            row.file,
            format!(
                "needs sm_{} and PTX {}.{}, the target is sm_{} with PTX {}.{}",
                row.min_sm,
                row.min_ptx / 10,
                row.min_ptx % 10,
                target.sm,
                target.ptx / 10,
                target.ptx % 10
            ),
        ));
    }
    let params = complete(row, params)?;
    let body = template::render(row.file, &sources::find, &globals(target), &params)?;
    let entries = symbols(row, &params);
    Ok(Instance { text: format!("{}\n{body}", target.header()), entries })
}

/// Writes a module from a template that is not in the catalog, which may include every fragment. For tests of the fragments
/// themselves; not an interface.
///
/// # Errors
/// A mistake in the template, with its line.
#[doc(hidden)]
pub fn expand(template: &str, target: Target, params: &[(&str, &str)]) -> Result<String, TemplateError> {
    const NAME: &str = "template";
    let find = |name: &str| if name == NAME { Some(template) } else { sources::find(name) };
    let params: Vec<_> = params.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let body = template::render(NAME, &find, &globals(target), &params)?;
    Ok(format!("{}\n{body}", target.header()))
}

/// The entry points that [`instantiate`] would name, without writing the text.
///
/// # Errors
/// An unknown row, parameter or value.
pub fn entries(kernel: &str, params: &[(&str, &str)]) -> Result<Vec<String>, TemplateError> {
    let row = find(kernel)?;
    Ok(symbols(row, &complete(row, params)?))
}

fn find(kernel: &str) -> Result<&'static catalog::Kernel, TemplateError> {
    catalog::kernel(kernel).ok_or_else(|| {
        let known: Vec<_> = catalog::rows().map(|row| row.name).collect();
        failure(kernel, format!("no such kernel; there are: {}", known.join(", ")))
    })
}

fn symbols(row: &catalog::Kernel, params: &[(String, String)]) -> Vec<String> {
    row.entries.iter().map(|entry| resolve(entry.symbol, params)).collect()
}

/// The row's parameters with the caller's values, checked, and its defaults.
fn complete(row: &catalog::Kernel, given: &[(&str, &str)]) -> Result<Vec<(String, String)>, TemplateError> {
    if let Some((name, _)) = given.iter().find(|(name, _)| row.params.iter().all(|p| p.name != *name)) {
        return Err(failure(row.file, format!("kernel {} has no parameter {name}", row.name)));
    }
    let mut params = Vec::new();
    for param in row.params {
        let value = given.iter().find(|(name, _)| *name == param.name).map_or(param.values[0], |&(_, v)| v);
        if !param.values.contains(&value) {
            let allowed = param.values.join(", ");
            return Err(failure(row.file, format!("{} = {value} is not one of: {allowed}", param.name)));
        }
        params.push((param.name.to_owned(), value.to_owned()));
    }
    Ok(params)
}

/// `${PARAM}` in an entry's symbol.
fn resolve(symbol: &str, params: &[(String, String)]) -> String {
    params.iter().fold(symbol.to_owned(), |text, (name, value)| text.replace(&format!("${{{name}}}"), value))
}

fn globals(target: Target) -> Vec<(String, u64)> {
    let mut table = abi::symbols();
    table.push(("sm".to_owned(), target.sm.into()));
    table.push(("ptx".to_owned(), target.ptx.into()));
    table.push(("UNIT_DATA".to_owned(), plan::UNIT_DATA.into()));
    table.push(("UNIT_LINES".to_owned(), plan::UNIT_LINES.into()));
    table
}

fn failure(file: &str, message: String) -> TemplateError {
    TemplateError { file: file.to_owned(), line: 0, message }
}
