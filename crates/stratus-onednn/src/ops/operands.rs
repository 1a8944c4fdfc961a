//! The values and layouts of a step's operands.

use crate::ffi::DataType;
use crate::native::rows::MapGeometry;
use stratus_engine::{DType, Layout, Value};

/// The operands of a step: inputs, updates and outputs, in this order. With a tiled batch they are those of
/// one tile.
pub(crate) struct StepOperands {
    pub values: Vec<Value>,
    pub layouts: Vec<Layout>,
    /// The numbers of inputs, updates and outputs.
    pub counts: [usize; 3],
}

impl StepOperands {
    pub(crate) fn dtype(&self, position: usize) -> Option<DType> {
        self.values.get(position).map(|value| value.dtype)
    }

    /// The common type of operands; an error if they differ.
    pub(crate) fn one_type(&self, positions: &[usize]) -> Result<DType, String> {
        let dtypes: Vec<DType> = positions.iter().filter_map(|&position| self.dtype(position)).collect();
        match dtypes[..] {
            [first, ref others @ ..] if others.iter().all(|other| *other == first) => Ok(first),
            _ => Err(format!("no kernel for operands of types {dtypes:?}")),
        }
    }

    /// The geometry of a feature map; an error unless all feature maps of the step share it.
    pub(crate) fn common_geometry(&self, position: usize) -> Result<MapGeometry, String> {
        let all: Vec<Option<MapGeometry>> = self
            .values
            .iter()
            .zip(&self.layouts)
            .filter(|(value, _)| value.shape.len() == 4)
            .map(|(value, layout)| MapGeometry::from_layout(&value.shape, layout))
            .collect();
        let is_alike = |one: &MapGeometry| {
            all.iter().all(|other| {
                other.is_some_and(|o| (o.pixel_channels, o.groups) == (one.pixel_channels, one.groups))
            })
        };
        self.find_geometry(position).filter(is_alike).ok_or_else(|| {
            let tags: Vec<&str> = self.layouts.iter().map(|layout| layout.tag.as_str()).collect();
            format!(
                "native kernels need maps that are all channels last or all in blocks of 16 channels, \
                 got {tags:?}"
            )
        })
    }

    /// The geometry of a feature map that may have other channels than the step's other maps.
    pub(crate) fn geometry(&self, position: usize) -> Result<MapGeometry, String> {
        self.find_geometry(position).ok_or_else(|| {
            format!(
                "native kernels need channels-last or 16-channel-blocked maps, got {}",
                self.tag(position)
            )
        })
    }

    fn find_geometry(&self, position: usize) -> Option<MapGeometry> {
        let (value, layout) = self.values.get(position).zip(self.layouts.get(position))?;
        MapGeometry::from_layout(&value.shape, layout)
    }

    /// The name of an operand's layout, for messages.
    pub(crate) fn tag(&self, position: usize) -> &str {
        self.layouts.get(position).map_or("nothing", |layout| layout.tag.as_str())
    }

    /// Checks that the operands have the same layout.
    pub(crate) fn expect_same_layout(&self, positions: &[usize]) -> Result<(), String> {
        let layouts: Vec<&Layout> = positions.iter().filter_map(|&p| self.layouts.get(p)).collect();
        match layouts.windows(2).find(|pair| !pair[0].same_bytes(pair[1])) {
            None => Ok(()),
            Some(pair) => {
                Err(format!("the operands have different layouts, {} and {}", pair[0].tag, pair[1].tag))
            }
        }
    }
}

/// oneDNN's type for `dtype`.
pub(crate) fn data_type(dtype: DType) -> Result<DataType, String> {
    DataType::from_dtype(dtype).ok_or_else(|| format!("no kernel for {dtype}"))
}
