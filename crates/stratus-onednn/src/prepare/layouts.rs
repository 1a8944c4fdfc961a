//! How values lie: what is decided before any kernel is chosen, and descriptors of what is decided.

use super::Builder;
use crate::ffi::{DataType, Desc};
use crate::ops;
use stratus_engine::ops::Kernel;
use stratus_engine::{EngineError, Layout, Role, ValueId};
use stratus_graph::ops::Linear;

impl Builder<'_> {
    /// Gives feature maps, vectors and everything fixed its layout; weights wait for their kernels.
    pub(super) fn lay_out_maps(&mut self, map_layout: &str) -> Result<(), EngineError> {
        let mut weights = vec![false; self.source.values.len()];
        let (mut stem_images, mut pixels) = (weights.clone(), weights.clone());
        for step in &self.source.steps {
            match &step.kernel {
                Kernel::Conv2dForward(_)
                | Kernel::LinearForward(_)
                | Kernel::Conv2dBackwardData(_)
                | Kernel::LinearBackwardData(_) => {
                    weights[step.inputs[1].0] = true;
                }
                Kernel::Conv2dBackwardWeights(_) | Kernel::LinearBackwardWeights(_) => {
                    weights[step.outputs[0].0] = true;
                }
                Kernel::StemStatistics(_) | Kernel::StemApply(_) | Kernel::StemInference(_) => {
                    stem_images[step.inputs[0].0] = true;
                }
                Kernel::StemGradients(_) => {
                    stem_images[step.inputs[0].0] = true;
                    weights[step.outputs[0].0] = true;
                }
                Kernel::NormalisePixels(_) => step.operands().for_each(|id| pixels[id.0] = true),
                Kernel::JoinWeights(_) | Kernel::SplitGradient(_) => {
                    step.operands().for_each(|id| weights[id.0] = true);
                }
                Kernel::AddTiles(_) => {
                    weights[step.inputs[0].0] = true;
                    weights[step.outputs[0].0] = true;
                }
                Kernel::LinearUpdate(k) => {
                    let copies = step.outputs.len() - usize::from(k.linear.bias);
                    for id in step.updates.iter().chain(&step.outputs[..copies]) {
                        weights[id.0] = true;
                    }
                }
                Kernel::SgdUpdate(_) | Kernel::AdaptiveUpdate(_) => {
                    for id in step.inputs[..1].iter().chain(&step.updates).chain(&step.outputs) {
                        weights[id.0] = true;
                    }
                }
                _ => {}
            }
        }
        for step in self.source.steps.iter().filter(|step| matches!(step.kernel, Kernel::NormalisePixels(_)))
        {
            // What is made of pixels lies as they do, and as images do that come ready.
            stem_images[step.inputs[0].0] = stem_images[step.outputs[0].0];
        }
        for (id, value) in self.source.values.iter().enumerate() {
            if let Some(fixed) = self.request.fixed.get(&value.name).filter(|_| value.role.is_persistent()) {
                self.layouts[id] = Some(fixed.clone());
            } else if matches!(value.role, Role::Parameter | Role::Frozen | Role::Copy | Role::Momentum)
                || weights[id]
            {
                // Vectors can only lie one way; matrices and kernels are laid out by the step that needs them first.
                if value.shape.len() < 2 {
                    self.layouts[id] = Some(Layout::plain(&value.shape));
                }
            } else if value.shape.len() == 4 {
                let named = self.request.choices.layouts.get(&value.name).map(String::as_str);
                let tag = if stem_images[id] { "nhwc" } else { named.unwrap_or(map_layout) };
                let role = if pixels[id] { Role::Images } else { value.role };
                let layout = self.map_layout(tag, &value.shape, role)?;
                self.choices.layouts.insert(value.name.clone(), layout.tag.clone());
                self.layouts[id] = Some(layout);
            } else {
                self.layouts[id] = Some(Layout::plain(&value.shape));
            }
        }
        Ok(())
    }

    fn map_layout(&self, tag: &str, shape: &[usize], role: Role) -> Result<Layout, EngineError> {
        let unknown =
            |reason: String| EngineError::Mismatch(format!("layout `{tag}` of a feature map: {reason}"));
        match tag {
            "nhwc" => Ok(Layout::channels_last(shape)),
            "plain" => Ok(Layout::plain(shape)),
            // Images come from the loader, which knows the two orders of pixels and no blocks.
            "nChw16c" if role == Role::Images => Ok(Layout::plain(shape)),
            "nChw16c" => {
                let desc = self.backend.context.blocked16(shape, DataType::F32).map_err(unknown)?;
                for dtype in [DataType::F32, DataType::Bf16] {
                    let desc = self.backend.context.blocked16(shape, dtype).map_err(unknown)?;
                    self.backend.learn(&desc, dtype).map_err(unknown)?;
                }
                desc.layout().map_err(unknown)
            }
            "aBcd16b" => self.map_layout("nChw16c", shape, role),
            _ => Err(unknown("it is not known here; plan again with --remeasure".to_owned())),
        }
    }

    pub(super) fn data_type(&self, id: ValueId) -> Result<DataType, String> {
        ops::data_type(self.program.value(id).dtype)
    }

    /// How a value lies as the step at hand sees it: the rows of one tile lie as those of the batch do.
    pub(super) fn seen_layout(&self, id: ValueId) -> Result<Option<Layout>, String> {
        let Some(layout) = &self.layouts[id.0] else { return Ok(None) };
        if !self.program.is_cut(id, self.tiles) {
            return Ok(Some(layout.clone()));
        }
        let mut tile = layout.clone();
        for extents in [&mut tile.shape, &mut tile.padded] {
            extents[0] /= self.tiles;
        }
        if !tile.blocks.is_empty() {
            // The library must have met it.
            let role = self.program.value(id).role;
            tile = self.map_layout(&layout.tag, &tile.shape, role).map_err(|error| error.to_string())?;
        }
        Ok(Some(tile))
    }

    pub(super) fn map_desc(&self, id: ValueId) -> Result<Desc, String> {
        let layout = self.seen_layout(id)?.ok_or("a feature map has no layout")?;
        self.backend.desc(&layout, self.data_type(id)?)
    }

    /// How a weight lies, where that is decided, seen with the dimensions that a kernel gives it.
    pub(super) fn weight_desc(&self, id: ValueId, shape: &[usize]) -> Result<Option<Desc>, String> {
        self.desc_like(id, shape, self.data_type(id)?)
    }

    /// The same of another type.
    fn desc_like(&self, id: ValueId, shape: &[usize], dtype: DataType) -> Result<Option<Desc>, String> {
        let Some(layout) = &self.layouts[id.0] else { return Ok(None) };
        let layout = seen_as(layout, shape)?;
        self.backend.desc(&layout, dtype).map(Some)
    }

    /// How the gradient of a weight should lie: as the parameter does, where that is decided.
    pub(super) fn gradient_desc(&self, gradient: ValueId, shape: &[usize]) -> Result<Option<Desc>, String> {
        let parameter = self.parameter_of(gradient).ok_or("it is the gradient of no parameter");
        match parameter {
            // Joined weights have the compute precision, their gradient the master precision.
            Ok(parameter) => self.desc_like(parameter, shape, self.data_type(gradient)?),
            // A step on its own, as in a test: row-major.
            Err(_) => Ok(Some(self.backend.desc(&Layout::plain(shape), DataType::F32)?)),
        }
    }

    pub(super) fn parameter_of(&self, gradient: ValueId) -> Option<ValueId> {
        self.program.differentiated(gradient)
    }

    pub(super) fn linear_shape(&self, linear: &Linear, x: ValueId) -> Vec<usize> {
        let mut shape = self.program.value(x).shape.clone();
        shape[0] = linear.out_features;
        shape
    }
}

/// A layout with other dimensions: a matrix in row-major order may be seen as four-dimensional, and the other way round.
pub(super) fn seen_as(layout: &Layout, shape: &[usize]) -> Result<Layout, String> {
    if layout.shape == shape {
        return Ok(layout.clone());
    }
    let plain = Layout::plain(shape);
    if !layout.same_bytes(&plain) {
        return Err(format!("it lies as {} with dimensions {:?}, not {shape:?}", layout.tag, layout.shape));
    }
    Ok(plain)
}
