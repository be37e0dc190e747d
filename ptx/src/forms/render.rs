//! A fragment's text, with each of its parameters bound.

use crate::fragment::{Fragment, FragmentParam, Variant};
use crate::{Target, TemplateError, globals, sources, template};

/// Renders one variant of `fragment` for `target`; `bind` names what stands for a parameter, given its index.
///
/// # Errors
/// A mistake in the fragment.
pub(super) fn render(
    fragment: &Fragment,
    variant: &Variant,
    target: Target,
    bind: impl Fn(usize, &FragmentParam) -> String,
) -> Result<String, TemplateError> {
    let bound = fragment.params.iter().enumerate().map(|(i, param)| (param.name.clone(), bind(i, param)));
    let params: Vec<_> = bound.chain(variant.consts.iter().cloned()).collect();
    template::render_fragment(&fragment.file, &sources::find, &globals(target), &params)
}
