//! Layouts of values: those fixed before kernels are chosen, and descriptors of decided ones.

use super::builder::PlanBuilder;
use super::needs::LayoutNeeds;
use crate::ffi::{DataType, Desc};
use crate::ops::data_type;
use stratus_engine::{EngineError, Layout, Role, Value, ValueId};

/// The layout that a stem reads images in.
const CHANNELS_LAST: &str = "nhwc";

impl PlanBuilder<'_> {
    /// Lays out feature maps, vectors and fixed values; the layout of weights depends on their kernels.
    pub(super) fn lay_out_maps(&mut self, map_layout: &str) -> Result<(), EngineError> {
        let source = self.source;
        let mut needs = LayoutNeeds::new(source.values.len());
        for step in &source.steps {
            (self.ops)(&step.kernel).layouts(step, &mut needs);
        }
        needs.finish();
        for (id, value) in source.values.iter().enumerate() {
            let layout = self.initial_layout(ValueId(id), value, &needs, map_layout)?;
            self.layouts[id] = layout;
        }
        Ok(())
    }

    /// The layout of a value that does not depend on the choice of kernels, if it has one.
    fn initial_layout(
        &mut self,
        id: ValueId,
        value: &Value,
        needs: &LayoutNeeds,
        map_layout: &str,
    ) -> Result<Option<Layout>, EngineError> {
        let fixed = self.request.fixed.get(&value.name);
        if let Some(fixed) = fixed.filter(|_| value.role.is_persistent()) {
            return Ok(Some(fixed.clone()));
        }
        let is_kept = matches!(
            value.role,
            Role::Parameter
                | Role::Frozen
                | Role::Teacher
                | Role::ComputeCopy
                | Role::OptimiserState
                | Role::Average
        );
        if is_kept || needs.weights[id.0] {
            // Vectors, and factors `[C, 1, 1]`, have only one layout.
            let is_vector = !matches!(value.shape.len(), 2 | 4);
            return Ok(is_vector.then(|| Layout::plain(&value.shape)));
        }
        if value.shape.len() != 4 {
            return Ok(Some(Layout::plain(&value.shape)));
        }
        let chosen = self.request.choices.layouts.get(&value.name).map_or(map_layout, String::as_str);
        let tag = if needs.channels_last[id.0] { CHANNELS_LAST } else { chosen };
        let role = if needs.are_pixels(id) { Role::Images } else { value.role };
        let layout = self.map_layout(tag, &value.shape, role)?;
        self.choices.layouts.insert(value.name.clone(), layout.tag.clone());
        Ok(Some(layout))
    }

    fn map_layout(&self, tag: &str, shape: &[usize], role: Role) -> Result<Layout, EngineError> {
        let unknown = |reason: String| {
            EngineError::InvalidRequest(format!("layout `{tag}` of a feature map: {reason}"))
        };
        match tag {
            CHANNELS_LAST => Ok(Layout::channels_last(shape)),
            "plain" => Ok(Layout::plain(shape)),
            // The loader writes images as planes or channels last, never blocked.
            "nChw16c" if role == Role::Images => Ok(Layout::plain(shape)),
            "nChw16c" => {
                let desc = self.backend.context.blocked16(shape, DataType::F32).map_err(unknown)?;
                for dtype in [DataType::F32, DataType::Bf16, DataType::U8] {
                    let desc = self.backend.context.blocked16(shape, dtype).map_err(unknown)?;
                    self.backend.remember_desc(&desc, dtype).map_err(unknown)?;
                }
                desc.layout().map_err(unknown)
            }
            "aBcd16b" => self.map_layout("nChw16c", shape, role),
            _ => Err(unknown("unknown layout in the plan; hint: run with `--remeasure`".to_owned())),
        }
    }

    pub(crate) fn data_type(&self, id: ValueId) -> Result<DataType, String> {
        data_type(self.program.value(id).dtype)
    }

    pub(crate) fn shape(&self, id: ValueId) -> &[usize] {
        &self.program.value(id).shape
    }

    /// The layout of a value, if it is decided.
    pub(crate) fn layout(&self, id: ValueId) -> Option<&Layout> {
        self.layouts[id.0].as_ref()
    }

    /// The layout of a value; sets it to `default` if it is undecided.
    pub(crate) fn layout_or(&mut self, id: ValueId, default: &Layout) -> Layout {
        self.layouts[id.0].get_or_insert_with(|| default.clone()).clone()
    }

    pub(crate) fn set_layout(&mut self, id: ValueId, layout: Layout) {
        self.layouts[id.0] = Some(layout);
    }

    /// The layout of a value as the current step sees it: that of one tile if the batch is tiled.
    pub(super) fn tile_layout(&self, id: ValueId) -> Result<Option<Layout>, String> {
        let Some(layout) = self.layout(id) else { return Ok(None) };
        if !self.program.is_tiled(id, self.tiles) {
            return Ok(Some(layout.clone()));
        }
        let mut tile = layout.clone();
        for extents in [&mut tile.shape, &mut tile.padded] {
            extents[0] /= self.tiles;
        }
        if !tile.blocks.is_empty() {
            // Makes oneDNN's descriptor known to the backend.
            let role = self.program.value(id).role;
            tile = self.map_layout(&layout.tag, &tile.shape, role).map_err(|error| error.to_string())?;
        }
        Ok(Some(tile))
    }

    pub(crate) fn map_desc(&self, id: ValueId) -> Result<Desc, String> {
        let layout = self.tile_layout(id)?.ok_or("a feature map has no layout")?;
        self.backend.desc(&layout, self.data_type(id)?)
    }

    /// The layout of weights, if decided, reshaped to `shape`.
    pub(crate) fn weight_desc(&self, id: ValueId, shape: &[usize]) -> Result<Option<Desc>, String> {
        self.desc_like(id, shape, self.data_type(id)?)
    }

    /// [`Self::weight_desc`] with another type.
    fn desc_like(&self, id: ValueId, shape: &[usize], dtype: DataType) -> Result<Option<Desc>, String> {
        let Some(layout) = self.layout(id) else { return Ok(None) };
        let layout = reshape_layout(layout, shape)?;
        self.backend.desc(&layout, dtype).map(Some)
    }

    /// The preferred layout of a gradient of weights: that of the parameter, if decided.
    pub(crate) fn gradient_desc(&self, gradient: ValueId, shape: &[usize]) -> Result<Option<Desc>, String> {
        match self.parameter_of(gradient) {
            // Joined weights have the compute precision, their gradient the master precision.
            Some(parameter) => self.desc_like(parameter, shape, self.data_type(gradient)?),
            // A single step, as in a test: row-major.
            None => Ok(Some(self.backend.desc(&Layout::plain(shape), DataType::F32)?)),
        }
    }

    pub(super) fn parameter_of(&self, gradient: ValueId) -> Option<ValueId> {
        self.program.primal_of(gradient)
    }
}

/// Reshapes a layout: a row-major matrix can be viewed with four dimensions, and vice versa.
pub(crate) fn reshape_layout(layout: &Layout, shape: &[usize]) -> Result<Layout, String> {
    if layout.shape == shape {
        return Ok(layout.clone());
    }
    let plain = Layout::plain(shape);
    if !layout.same_bytes(&plain) {
        return Err(format!(
            "layout {} of shape {:?} cannot be viewed as {shape:?}",
            layout.tag, layout.shape
        ));
    }
    Ok(plain)
}
