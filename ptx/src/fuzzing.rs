//! The instantiator on any text, for the fuzz targets of the `fuzz` package; not part of the API.

use crate::{TemplateError, template};

/// Renders `main`, which may include `part` as `part.ptxi`, with the names `N` = 4 and `R` = `%r`.
///
/// # Errors
/// A mistake in the text.
pub fn render(main: &str, part: &str) -> Result<String, TemplateError> {
    let sources = |name: &str| match name {
        "main.ptx" => Some(main),
        "part.ptxi" => Some(part),
        _ => None,
    };
    let params = [("N".to_owned(), "4".to_owned()), ("R".to_owned(), "%r".to_owned())];
    template::render("main.ptx", &sources, &[("sm".to_owned(), 90)], &params)
}
