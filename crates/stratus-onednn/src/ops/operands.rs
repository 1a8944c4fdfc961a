//! A step's operands: their values and layouts, and what kernels ask about them.

use crate::ffi::DataType;
use crate::native::rows::Geometry;
use stratus_engine::{DType, Layout, Value};

/// The operands of a step: inputs, updates and outputs, in this order. Of a batch in tiles they are one
/// tile's.
pub(crate) struct StepOperands {
    pub values: Vec<Value>,
    pub layouts: Vec<Layout>,
    /// How many are inputs, updates and outputs.
    pub counts: [usize; 3],
}

impl StepOperands {
    pub(super) fn dtype(&self, position: usize) -> Option<DType> {
        self.values.get(position).map(|value| value.dtype)
    }

    /// The type of operands that must all have the same.
    pub(super) fn one_type(&self, positions: &[usize]) -> Result<DType, String> {
        let dtypes: Vec<DType> = positions.iter().filter_map(|&position| self.dtype(position)).collect();
        match dtypes[..] {
            [first, ref others @ ..] if others.iter().all(|other| *other == first) => Ok(first),
            _ => Err(format!("it has no kernel for operands of {dtypes:?}")),
        }
    }

    /// How kernels walk a feature map; all feature maps of the step must be walked alike.
    pub(super) fn common_geometry(&self, position: usize) -> Result<Geometry, String> {
        let all: Vec<Option<Geometry>> = self
            .values
            .iter()
            .zip(&self.layouts)
            .filter(|(value, _)| value.shape.len() == 4)
            .map(|(value, layout)| Geometry::of(&value.shape, layout))
            .collect();
        let is_alike = |one: &Geometry| {
            all.iter().all(|other| other.is_some_and(|o| (o.width, o.groups) == (one.width, one.groups)))
        };
        self.find_geometry(position).filter(is_alike).ok_or_else(|| {
            let tags: Vec<&str> = self.layouts.iter().map(|layout| layout.tag.as_str()).collect();
            format!(
                "native kernels take maps that are all channels last or all in blocks of 16 channels, \
                 these are {tags:?}"
            )
        })
    }

    /// How kernels walk a feature map that may have other channels than the step's other maps.
    pub(super) fn geometry(&self, position: usize) -> Result<Geometry, String> {
        self.find_geometry(position).ok_or_else(|| {
            format!(
                "native kernels take maps that are channels last or in blocks of 16 channels, one is {}",
                self.tag(position)
            )
        })
    }

    fn find_geometry(&self, position: usize) -> Option<Geometry> {
        let (value, layout) = self.values.get(position).zip(self.layouts.get(position))?;
        Geometry::of(&value.shape, layout)
    }

    /// The name of an operand's layout, for messages.
    pub(super) fn tag(&self, position: usize) -> &str {
        self.layouts.get(position).map_or("nothing", |layout| layout.tag.as_str())
    }

    /// Checks that elements correspond by their place in memory.
    pub(super) fn expect_same_layout(&self, positions: &[usize]) -> Result<(), String> {
        let layouts: Vec<&Layout> = positions.iter().filter_map(|&p| self.layouts.get(p)).collect();
        match layouts.windows(2).find(|pair| !pair[0].same_bytes(pair[1])) {
            None => Ok(()),
            Some(pair) => Err(format!("its operands have the layouts {} and {}", pair[0].tag, pair[1].tag)),
        }
    }
}

/// The library's name of a type.
pub(crate) fn data_type(dtype: DType) -> Result<DataType, String> {
    DataType::of(dtype).ok_or_else(|| format!("there is no kernel for {dtype}"))
}
