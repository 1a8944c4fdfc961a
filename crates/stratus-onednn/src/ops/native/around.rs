//! The operands of a step on our own kernels, and what is made from how they lie.

use crate::native::elementwise::CpuContext;
use crate::native::norm::batch::{BatchNorm, Pooling};
use crate::native::norm::pooled::disjoint::DisjointPool;
use crate::native::pixels::ScaleShift;
use crate::native::pool::max::MaxPool;
use crate::native::rows::{ChannelSlice, Geometry};
use crate::native::stem::StemKernel;
use stratus_engine::ops::{FusedPool, MOST_CHANNELS, Parts, Stem};
use stratus_engine::{DType, Layout, Value};
use stratus_graph::ops::{BatchNorm2d, MaxPool2d};

/// The operands of a step: their values and layouts.
pub(super) struct Around {
    pub(super) values: Vec<Value>,
    pub(super) layouts: Vec<Layout>,
}

impl Around {
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

    /// The types of a batch norm: the first operand's, and that of its result and gradients, at `behind`.
    pub(super) fn norm_types(&self, behind: &[usize]) -> Result<[DType; 2], String> {
        let x = self.one_type(&[0])?;
        let behind = if behind.is_empty() { x } else { self.one_type(behind)? };
        match (x, behind) {
            // Behind a linear layer, whose results have the master precision.
            (DType::F32, DType::F32 | DType::Bf16) | (DType::Bf16, DType::Bf16) => Ok([x, behind]),
            _ => Err(format!("there is no kernel for {x} and {behind}")),
        }
    }

    /// How a feature map is walked. All feature maps of a step are walked alike.
    pub(super) fn geometry(&self, position: usize) -> Result<Geometry, String> {
        let all: Vec<Option<Geometry>> = self
            .values
            .iter()
            .zip(&self.layouts)
            .filter(|(value, _)| value.shape.len() == 4)
            .map(|(value, layout)| Geometry::of(&value.shape, layout))
            .collect();
        let own = self.values.get(position).zip(self.layouts.get(position));
        own.and_then(|(value, layout)| Geometry::of(&value.shape, layout))
            .filter(|own| all.iter().all(|g| g.is_some_and(|g| (g.width, g.groups) == (own.width, own.groups))))
            .ok_or_else(|| {
                let tags: Vec<&str> = self.layouts.iter().map(|layout| layout.tag.as_str()).collect();
                format!("our kernels walk maps that are all channels last or all in blocks of 16 channels, these lie as {tags:?}")
            })
    }

    /// How a feature map is walked that may have other channels than the other maps of its step.
    pub(super) fn own_geometry(&self, position: usize) -> Result<Geometry, String> {
        let own = self.values.get(position).zip(self.layouts.get(position));
        own.and_then(|(value, layout)| Geometry::of(&value.shape, layout)).ok_or_else(|| {
            let tag = self.layouts.get(position).map_or("nothing", |layout| layout.tag.as_str());
            format!(
                "our kernels walk maps that are channels last or in blocks of 16 channels, one lies as {tag}"
            )
        })
    }

    /// Where the map of a batch norm lies, and its result, the operand at `position`: either may be part of a larger map.
    pub(super) fn places(
        &self,
        position: usize,
        norm: &BatchNorm2d,
        parts: Parts,
    ) -> Result<[ChannelSlice; 2], String> {
        if parts == Parts::default() {
            return Ok([ChannelSlice::all_of(self.geometry(0)?); 2]);
        }
        let is_like_input = |&at: &usize| at != position && self.values[at].shape.len() == 4;
        self.expect_same_layout(&(0..self.values.len()).filter(is_like_input).collect::<Vec<_>>())?;
        let own = self.own_geometry(0)?.with_channels(norm.channels);
        let place = |at: usize, first: Option<usize>| {
            let first = first.unwrap_or(0);
            ChannelSlice::of(self.own_geometry(at)?, first, own).ok_or_else(|| {
                let tag = self.layouts.get(at).map_or("nothing", |layout| layout.tag.as_str());
                format!("our kernels do not reach the channels from {first} on of a map that lies as {tag}")
            })
        };
        Ok([place(0, parts.x)?, place(position, parts.y)?])
    }

    /// A batch norm before what the operand at `position` is, or is the gradient of: rectified, pooled or part of a larger map.
    pub(super) fn norm_before(
        &self,
        cpu: &CpuContext,
        position: usize,
        (norm, relu): (&BatchNorm2d, bool),
        (pool, parts): (Option<FusedPool>, Parts),
        dtypes: [DType; 2],
    ) -> Result<BatchNorm, String> {
        let pool = pool.map(|pool| Ok::<_, String>((pool, self.geometry(position)?))).transpose()?;
        batch_norm(cpu, self.places(position, norm, parts)?, norm, relu, pool, dtypes)
    }

    /// The kernels of a stem, whose operands begin with images and weight; its pooled map is at `pooled`, where it has one.
    pub(super) fn stem(
        &self,
        cpu: &CpuContext,
        stem: Stem,
        pooled: Option<usize>,
    ) -> Result<StemKernel, String> {
        let [Value { shape: images, .. }, Value { shape: weight, .. }, ..] = &self.values[..] else {
            return Err("it has no images".to_owned());
        };
        let &[batch, _, height, width] = &images[..] else {
            return Err(format!("its images are {images:?}"));
        };
        let plain = Layout::plain(weight);
        for (layout, expected) in self.layouts.iter().zip([&Layout::channels_last(images), &plain]) {
            if !layout.same_bytes(expected) {
                return Err(format!("there is no kernel for images or weights that lie as {}", layout.tag));
            }
        }
        let size = stem.conv.output_size([height, width]).map_err(|error| error.to_string())?;
        let shape = Stem::POOL.output_shape([batch, stem.conv.out_channels, size[0], size[1]]);
        let lies = match pooled {
            // An index lies as the map whose windows it is about.
            Some(position) => {
                let maps = (0..self.values.len()).filter(|&at| self.values[at].shape == shape);
                maps.map(|at| self.expect_same_layout(&[position, at])).collect::<Result<Vec<_>, _>>()?;
                self.own_geometry(position)?
            }
            None => Geometry::of(&shape, &Layout::channels_last(&shape)).ok_or("it pools nothing")?,
        };
        StemKernel::new(stem, batch, [height, width], lies, cpu.level, cpu.team.clone())
            .ok_or_else(|| format!("it has no kernel for {stem:?} of images {images:?}"))
    }

    /// Which line each pixel follows of images that lie channels last or in planes.
    pub(super) fn lines(&self, of: [[f32; 2]; MOST_CHANNELS]) -> Result<ScaleShift, String> {
        let (value, layout) = self.values.first().zip(self.layouts.first()).ok_or("it reads nothing")?;
        let &[_, channels, height, width] = &value.shape[..] else {
            return Err(format!("`{}` is {:?}, no images", value.name, value.shape));
        };
        let run = if layout.is_row_major() {
            height * width
        } else if layout.same_bytes(&Layout::channels_last(&value.shape)) {
            1
        } else {
            return Err(format!("it takes images in planes or channels last, not as {}", layout.tag));
        };
        Ok(ScaleShift { of, channels: channels.max(1), run: run.max(1) })
    }

    /// Checks that elements correspond by their place in memory.
    pub(super) fn expect_same_layout(&self, positions: &[usize]) -> Result<(), String> {
        let layouts: Vec<&Layout> = positions.iter().filter_map(|&p| self.layouts.get(p)).collect();
        match layouts.windows(2).find(|pair| !pair[0].same_bytes(pair[1])) {
            None => Ok(()),
            Some(pair) => Err(format!("its operands lie as {} and as {}", pair[0].tag, pair[1].tag)),
        }
    }
}

/// A batch norm of the map that lies at the first place, with its result at the second.
pub(super) fn batch_norm(
    cpu: &CpuContext,
    [input, output]: [ChannelSlice; 2],
    norm: &BatchNorm2d,
    relu: bool,
    pool: Option<(FusedPool, Geometry)>,
    [dtype, output_dtype]: [DType; 2],
) -> Result<BatchNorm, String> {
    let pool = pool.map(|(FusedPool { window, overlapping }, pooled)| match overlapping {
        Some(pool) => Pooling::Overlapping(Box::new(max_pool(cpu, &pool, input.slice(), pooled))),
        None => Pooling::Disjoint(DisjointPool { window }),
    });
    if pool.is_some() && dtype != output_dtype {
        return Err(format!("there is no kernel that pools {dtype} into {output_dtype}"));
    }
    Ok(BatchNorm {
        geometry: input.slice(),
        input,
        output,
        epsilon: norm.epsilon,
        momentum: norm.momentum,
        relu,
        pool,
        dtype,
        output_dtype,
        level: cpu.level,
        team: cpu.team.clone(),
    })
}

pub(super) fn max_pool(cpu: &CpuContext, pool: &MaxPool2d, input: Geometry, output: Geometry) -> MaxPool {
    MaxPool::new(pool, input, output, cpu.level, cpu.team.clone())
}
