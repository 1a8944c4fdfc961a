//! Changes of layout and type on oneDNN.

use super::{Candidate, Maker, Run};
use crate::ffi::{Desc, arg};

/// The same numbers in another layout, another type, or both.
pub(crate) fn transfer(maker: &Maker<'_>, from: &Desc, to: &Desc) -> Result<Candidate, String> {
    let desc = maker.context.reorder(from, to, &maker.plain)?;
    let operands = vec![(arg::SRC, from.duplicate()?), (arg::DST, to.duplicate()?)];
    Ok(Candidate { name: desc.implementation(), operands, run: Run::Primitive(desc) })
}
