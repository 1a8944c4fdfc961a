//! The work of networks given as a table of layers: of TensorFlow in f32 with plain SGD, for unfused
//! operations of Keras.

use super::{ConvExtents, FEATURE_COUNT, Kernel, KernelKind, Pass, Work};
use crate::error::{Error, Result};
use crate::table::Table;
use std::collections::BTreeMap;

/// A layer of a table. Extents of feature maps are `[channels, height, width]`, without the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The kind of layer.
    pub kind: LayerKind,
    /// The extents of its input.
    pub input: [f64; 3],
    /// The extents of its output.
    pub output: [f64; 3],
    /// Kernel `[height, width]`; 1 without one.
    pub kernel: [f64; 2],
    /// The vertical stride.
    pub stride: f64,
    /// True if it includes an activation.
    pub activated: bool,
    /// Number of parameters, including running statistics.
    pub parameters: f64,
}

/// The kind of a layer, with its names in Keras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// `Conv2D`
    Convolution,
    /// `DepthwiseConv2D`
    Depthwise,
    /// `Dense`
    Linear,
    /// `BatchNormalization`
    BatchNorm,
    /// `Activation`, `ReLU`
    Activation,
    /// `Add`
    Add,
    /// `CustomScaleLayer`: a scaled sum of two feature maps
    ScaledAdd,
    /// `Concatenate`
    Concat,
    /// `MaxPooling2D`
    MaxPool,
    /// `AveragePooling2D`, `GlobalAveragePooling2D`
    AveragePool,
    /// `ZeroPadding2D`
    Pad,
    /// `Flatten`
    Flatten,
}

impl LayerKind {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "Conv2D" => Self::Convolution,
            "DepthwiseConv2D" => Self::Depthwise,
            "Dense" => Self::Linear,
            "BatchNormalization" => Self::BatchNorm,
            "Activation" | "ReLU" => Self::Activation,
            "Add" => Self::Add,
            "CustomScaleLayer" => Self::ScaledAdd,
            "Concatenate" => Self::Concat,
            "MaxPooling2D" => Self::MaxPool,
            "AveragePooling2D" | "GlobalAveragePooling2D" => Self::AveragePool,
            "ZeroPadding2D" => Self::Pad,
            "Flatten" => Self::Flatten,
            _ => return None,
        })
    }
}

/// A network at one image size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerTable {
    /// The layers, in order.
    pub layers: Vec<Layer>,
}

/// The networks of a table, by name and image size.
pub type Networks = BTreeMap<(String, u32), LayerTable>;

/// Reads a table of layers: `model,image_size,index,kind,in_h,in_w,in_c,out_h,out_w,out_c,kernel_h,kernel_w,
/// stride_h,stride_w,inputs,activation,parameters`. Layers are sorted by `index`.
///
/// # Errors
/// If a column is missing, or a line is invalid.
pub fn parse(file: &str, text: &str) -> Result<Networks> {
    let table = Table::parse(file, text)?;
    let column = |name| table.column(name);
    let (model, size, index, kind) =
        (column("model")?, column("image_size")?, column("index")?, column("kind")?);
    let input = [column("in_c")?, column("in_h")?, column("in_w")?];
    let output = [column("out_c")?, column("out_h")?, column("out_w")?];
    let kernel = [column("kernel_h")?, column("kernel_w")?];
    let (stride, activation, parameters) =
        (column("stride_h")?, column("activation")?, column("parameters")?);
    let mut found: BTreeMap<(String, u32), Vec<(u64, Layer)>> = BTreeMap::new();
    for row in table.rows() {
        let extents = |columns: [usize; 3]| -> Result<[f64; 3]> {
            Ok([row.count(columns[0])?, row.count(columns[1])?, row.count(columns[2])?])
        };
        let name = row.text(kind);
        let Some(kind) = LayerKind::parse(name) else {
            return Err(row.problem(format!("unknown layer `{name}`")));
        };
        let layer = Layer {
            kind,
            input: extents(input)?,
            output: extents(output)?,
            kernel: [row.count_or(kernel[0], 1.0)?, row.count_or(kernel[1], 1.0)?],
            stride: row.count_or(stride, 1.0)?,
            activated: !matches!(row.text(activation), "" | "linear"),
            parameters: row.count_or(parameters, 0.0)?,
        };
        let key = (row.text(model).to_owned(), row.count(size)? as u32);
        found.entry(key).or_default().push((row.count_or(index, 0.0)? as u64, layer));
    }
    if found.is_empty() {
        return Err(Error::File { file: file.to_owned(), problem: "it has no layers".to_owned() });
    }
    let ordered = |mut layers: Vec<(u64, Layer)>| {
        layers.sort_by_key(|(index, _)| *index);
        LayerTable { layers: layers.into_iter().map(|(_, layer)| layer).collect() }
    };
    Ok(found.into_iter().map(|(key, layers)| (key, ordered(layers))).collect())
}

impl LayerTable {
    /// The work of a training step on `batch` samples.
    #[must_use]
    pub fn work(&self, batch: f64) -> Work {
        let mut kernels = Vec::new();
        let mut first = true;
        for (position, layer) in self.layers.iter().enumerate() {
            let mut add = Adder { layer: position.to_string(), kernels: &mut kernels };
            layer.kernels(batch, first, &mut add);
            first &= layer.kind != LayerKind::Convolution;
        }
        Work { kernels }
    }

    /// Total number of parameters, including running statistics.
    #[must_use]
    pub fn parameters(&self) -> f64 {
        self.layers.iter().map(|layer| layer.parameters).sum()
    }
}

/// Bytes of an f32.
const F32: f64 = 4.0;

struct Adder<'a> {
    layer: String,
    kernels: &'a mut Vec<Kernel>,
}

impl Adder<'_> {
    fn push(&mut self, name: &str, kind: KernelKind, flops: f64, elements: f64) {
        let (layer, name) = (self.layer.clone(), name.to_owned());
        let bytes = F32 * elements;
        let (product, launches, sizes) = (None, 1.0, [0.0; FEATURE_COUNT]);
        self.kernels.push(Kernel { layer, name, kind, flops, bytes, product, launches, features: sizes });
    }

    fn convolution(&mut self, extents: &ConvExtents, pass: Pass, elements: f64) {
        let name = match pass {
            Pass::Forward => "forward",
            Pass::BackwardData => "backward_data",
            Pass::BackwardWeights => "backward_weights",
        };
        self.push(name, extents.kind(pass), extents.flops(), elements);
        if let Some(kernel) = self.kernels.last_mut() {
            kernel.product = Some(extents.product(pass));
        }
    }
}

impl Layer {
    fn kernels(&self, batch: f64, first: bool, to: &mut Adder<'_>) {
        let elements = |map: [f64; 3]| batch * map.iter().product::<f64>();
        let (read, made) = (elements(self.input), elements(self.output));
        let taps = self.kernel[0] * self.kernel[1];
        let mut updates = f64::from(u8::from(self.parameters > 0.0));
        match self.kind {
            LayerKind::Convolution => {
                let extents = ConvExtents {
                    batch,
                    input: self.input,
                    output: self.output,
                    kernel: self.kernel,
                    stride: self.stride,
                    groups: 1.0,
                    dilated: false,
                };
                let weights = taps * self.input[0] * self.output[0];
                to.convolution(&extents, Pass::Forward, read + made + weights);
                if !first {
                    to.convolution(&extents, Pass::BackwardData, read + made + weights);
                }
                to.convolution(&extents, Pass::BackwardWeights, read + made + weights);
                if self.parameters > weights {
                    updates = 2.0;
                    bias(made, to);
                }
                if self.activated {
                    activation(made, to);
                }
            }
            LayerKind::Depthwise => {
                for name in ["forward", "backward_data", "backward_weights"] {
                    to.push(name, KernelKind::Depthwise, 2.0 * made * taps, read + made);
                }
            }
            LayerKind::Linear => {
                let weights = self.input[0] * self.output[0];
                for name in ["forward", "backward_data", "backward_weights"] {
                    to.push(name, KernelKind::Linear, 2.0 * batch * weights, read + made + weights);
                }
                updates = 2.0;
                bias(made, to);
                if self.activated {
                    activation(made, to);
                }
            }
            LayerKind::BatchNorm => {
                updates = 2.0;
                to.push("forward", KernelKind::Norm, 0.0, 3.0 * read);
                to.push("backward", KernelKind::Norm, 0.0, 5.0 * read);
            }
            LayerKind::Activation => activation(read, to),
            LayerKind::ScaledAdd => to.push("forward", KernelKind::Elementwise, 0.0, 6.0 * read),
            // Its gradient is passed unchanged to both inputs.
            LayerKind::Add => to.push("forward", KernelKind::Elementwise, 0.0, 3.0 * made),
            LayerKind::Concat => {
                to.push("forward", KernelKind::Elementwise, 0.0, 2.0 * made);
                to.push("backward", KernelKind::Elementwise, 0.0, 2.0 * made);
            }
            LayerKind::MaxPool => {
                to.push("forward", KernelKind::Pool, 0.0, read + made);
                to.push("backward", KernelKind::Pool, 0.0, 2.0 * (read + made));
            }
            LayerKind::AveragePool | LayerKind::Pad => {
                to.push("forward", KernelKind::Elementwise, 0.0, read + made);
                to.push("backward", KernelKind::Elementwise, 0.0, read + made);
            }
            LayerKind::Flatten => {}
        }
        for _ in 0..updates as usize {
            to.push("update", KernelKind::Update, 0.0, 3.0 * self.parameters / updates);
        }
    }
}

fn bias(made: f64, to: &mut Adder<'_>) {
    to.push("bias", KernelKind::Elementwise, 0.0, 2.0 * made);
    to.push("bias_gradient", KernelKind::BiasGradient, 0.0, made);
}

fn activation(elements: f64, to: &mut Adder<'_>) {
    to.push("activation", KernelKind::Elementwise, 0.0, 2.0 * elements);
    to.push("activation_gradient", KernelKind::Elementwise, 0.0, 3.0 * elements);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "model,image_size,index,kind,in_h,in_w,in_c,out_h,out_w,out_c,kernel_h,kernel_w,\
                         stride_h,stride_w,inputs,activation,parameters\n";

    #[test]
    fn first_convolution_has_no_data_gradient() {
        let text = format!(
            "{TABLE}a,8,1,Conv2D,8,8,16,4,4,32,3,3,2,2,1,linear,4608\n\
             a,8,0,Conv2D,8,8,3,8,8,16,3,3,1,1,1,relu,448\n"
        );
        let networks = parse("layers.csv", &text).unwrap();
        let work = networks[&("a".to_owned(), 8)].work(2.0);
        let kinds: Vec<&str> = work.kernels.iter().map(|kernel| kernel.kind.name()).collect();
        let first = ["first_forward", "first_weights", "elementwise", "bias_gradient"];
        let rest = ["elementwise", "elementwise", "update", "update"];
        let second = ["convolution", "convolution", "convolution", "update"];
        assert_eq!(kinds, [&first[..], &rest, &second].concat());
        let forward = &work.kernels[8];
        assert_eq!(forward.flops, 2.0 * 2.0 * 16.0 * 32.0 * 9.0 * 16.0);
        let product = forward.product.unwrap();
        assert_eq!((product.rows, product.columns, product.depth, product.padding), (32.0, 32.0, 144.0, 1.0));
        let data = work.kernels[9].product.unwrap();
        // A quarter of the taps contributes to each pixel.
        assert_eq!((data.rows, data.columns, data.depth), (128.0, 16.0, 72.0));
    }

    #[test]
    fn small_feature_maps_are_padded_to_tiles() {
        let text = format!("{TABLE}a,2,0,Conv2D,2,2,8,2,2,8,3,3,1,1,1,linear,576\n");
        let work = parse("layers.csv", &text).unwrap()[&("a".to_owned(), 2)].work(1.0);
        assert_eq!(work.kernels[0].kind, KernelKind::Filtering);
        assert_eq!(work.kernels[0].product.unwrap().padding, 4.0);
    }

    #[test]
    fn names_invalid_lines() {
        let refused = |line: &str| parse("l.csv", &format!("{TABLE}{line}\n")).unwrap_err().to_string();
        let error = refused("a,8,0,Conv3D,8,8,3,8,8,16,3,3,1,1,1,relu,448");
        assert_eq!(error, "l.csv, line 2: unknown layer `Conv3D`");
        assert!(refused("a,8,0,Conv2D,8,x,3,8,8,16,3,3,1,1,1,relu,448").contains("but is `x`"));
        assert!(refused("a,8,0,Conv2D,8,-8,3,8,8,16,3,3,1,1,1,relu,448").contains("but is `-8`"));
        assert!(refused("a,8").contains("2 fields"));
        assert!(parse("l.csv", "a,b\n").unwrap_err().to_string().contains("missing column `model`"));
    }
}
