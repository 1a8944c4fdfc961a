//! Operations: attributes, shape rule, parameters and cost. To add one, add a file here and a line in
//! [`with_operations!`](crate::with_operations); an activation is a row of the module `activation`.

mod activation;
mod adaptive_avg_pool2d;
mod add;
mod avg_pool2d;
mod batch_norm;
mod channel_scale;
mod channel_shuffle;
mod channel_slice;
mod concat;
mod conv2d;
mod conv_transpose2d;
mod dropout;
mod examples;
mod flatten;
mod layer_norm2d;
mod layer_scale;
mod linear;
mod max_pool2d;
mod pointwise_linear;
mod prelu;
mod relu;
mod resize;
mod scale;

pub use activation::*;
pub use adaptive_avg_pool2d::AdaptiveAvgPool2d;
pub use add::Add;
pub use avg_pool2d::AvgPool2d;
pub use batch_norm::BatchNorm2d;
pub use channel_scale::ChannelScale;
pub use channel_shuffle::ChannelShuffle;
pub use channel_slice::ChannelSlice;
pub use concat::Concat;
pub use conv_transpose2d::ConvTranspose2d;
pub use conv2d::Conv2d;
pub use dropout::{Dropout, Dropout2d, StochasticDepth};
pub use examples::example_networks;
pub use flatten::Flatten;
pub use layer_norm2d::LayerNorm2d;
pub use layer_scale::LayerScale;
pub use linear::Linear;
pub use max_pool2d::MaxPool2d;
pub use pointwise_linear::PointwiseLinear;
pub use prelu::Prelu;
pub use relu::{Relu, Relu6};
pub use resize::{Resize, ResizeTo};
pub use scale::Scale;

use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::shape::check_tensor_size;
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// The initialisation of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Initialisation {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Half the width of the interval.
        bound: f32,
    },
    /// Normal with mean zero.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// All one value.
    Constant {
        /// The value.
        value: f32,
    },
    /// For a convolution: its first output channels are the identity of its input channels, as in PyTorch's
    /// `dirac_`; further output channels are uniform in `[-bound, bound)`. At initialisation the network is
    /// close to the identity plus pooling (Zagoruyko, Komodakis: "DiracNets", 2017).
    Dirac {
        /// Half the width of the interval of further channels.
        bound: f32,
    },
    /// For a convolution that reads the images: the principal components of their patches, scaled to equal
    /// variance, each with both signs, so that its outputs are uncorrelated and ReLU loses none of them
    /// (Coates, Ng: "Learning feature representations with k-means", 2012; K. Jordan: "94% on CIFAR-10 in
    /// 3.29 seconds on a single GPU", 2024).
    Whitening,
}

impl Initialisation {
    /// Normal with variance `2 / fan` (He et al.: "Delving deep into rectifiers", 2015): it preserves the
    /// signal's variance through ReLU.
    #[must_use]
    pub fn kaiming_normal(fan: usize) -> Self {
        Self::Normal { std: (2.0 / fan.max(1) as f32).sqrt() }
    }
}

/// The kind of a parameter, which determines if the optimiser changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ParameterKind {
    /// Trained by its gradient.
    Trained,
    /// Stored with the weights and changed by the forward pass: running statistics.
    Buffer,
}

/// A tensor that an operation owns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterSpec {
    /// The last part of its key: `weight`, `bias`, `running_mean`, `running_var`.
    pub name: &'static str,
    /// Extents: `[out, in / groups, kernel height, kernel width]` (transposed: `[in, out / groups, ...]`),
    /// `[out, in]` or `[channels]`.
    pub shape: Vec<usize>,
    /// The initialisation.
    pub initialisation: Initialisation,
    /// Trained or buffer.
    pub kind: ParameterKind,
}

/// Shape rule, parameters and cost of an operation.
pub trait Operation {
    /// Its common name, in snake case.
    fn kind(&self) -> &'static str;

    /// The shape of its output for one sample.
    ///
    /// # Errors
    /// If it does not accept the inputs; the message names the shapes.
    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError>;

    /// The tensors it owns, in the order PyTorch registers them.
    fn parameters(&self) -> Vec<ParameterSpec> {
        Vec::new()
    }

    /// Floating-point operations of its forward pass for one sample (a multiply-add counts two).
    fn forward_flops(&self, inputs: &[&Shape], output: &Shape) -> u64;

    /// The number of output values that each input value contributes to, for the initialisation
    /// `"kaiming_normal"`; `None` for operations without such weights.
    fn fan_out(&self) -> Option<usize> {
        None
    }

    /// Returns whether no output is negative; `_inputs_are` is true if no input is negative.
    fn is_never_negative(&self, _inputs_are: bool) -> bool {
        false
    }

    /// Its attributes in short, for tables.
    fn attributes(&self) -> String {
        String::new()
    }
}

/// The form of an operation in a layer file.
pub(crate) trait LayerFileOp: Sized {
    /// Its name, that of [`Operation::kind`].
    const NAME: &'static str;

    /// The attributes it takes.
    const KEYS: &'static [&'static str] = &[];

    /// The attributes with their defaults, for the page of layer files.
    const ATTRIBUTES: &'static str = "";

    /// The shapes of inputs and output and what it computes, for the page of layer files.
    const SHAPES: &'static str;

    /// The attributes of layers of eight channels with 6x5 pixels, each as in a layer file, such as
    /// `groups = 4`: see [`example_networks`].
    const EXAMPLES: &'static [&'static str] = &[];

    /// Builds the operation from its attributes. Sizes that follow from the inputs are not attributes.
    ///
    /// # Errors
    /// If an attribute is missing or invalid.
    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError>;

    /// Writes the attributes that differ from the defaults of [`from_attributes`](Self::from_attributes).
    fn write_attributes(&self, _to: &mut AttributeWriter) {}
}

/// The items of [`LayerFileOp`] for one operation, as a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpDeclaration {
    pub(crate) name: &'static str,
    pub(crate) keys: &'static [&'static str],
    /// Its row on the page of layer files, without its name.
    pub(crate) row: fn() -> String,
    pub(crate) build: fn(&Attributes<'_>, &[&Shape]) -> Result<Op, AttributeError>,
    /// See [`LayerFileOp::EXAMPLES`].
    examples: &'static [&'static str],
}

/// The input of a unary operation.
pub(crate) fn single_input<'a>(kind: &str, inputs: &[&'a Shape]) -> Result<&'a Shape, ShapeError> {
    match inputs {
        [input] => Ok(input),
        _ => Err(ShapeError::new(format!("{kind}: expected 1 input, got {}", inputs.len()))),
    }
}

/// The channels or features of the first input; 0 without inputs.
fn input_channels(inputs: &[&Shape]) -> usize {
    inputs.first().and_then(|shape| shape.0.first()).copied().unwrap_or(0)
}

/// The channels of an operation's input, an image with `expected` channels.
fn expect_channels(input: &Shape, expected: usize) -> Result<usize, ShapeError> {
    match input.as_image()? {
        [channels, ..] if channels == expected => Ok(channels),
        [channels, ..] => Err(ShapeError::new(format!(
            "expected {expected} channels, but the input {input} has {channels}"
        ))),
    }
}

/// Checks the term that a norm adds to the variance.
fn expect_epsilon(epsilon: f32) -> Result<(), ShapeError> {
    if epsilon > 0.0 && epsilon.is_finite() {
        return Ok(());
    }
    Err(ShapeError::new(format!("`epsilon` must be > 0, got {epsilon}")))
}

/// The weight and the bias of a norm, each with an element per channel.
fn norm_parameters(channels: usize) -> Vec<ParameterSpec> {
    let parameter = |name, initialisation| ParameterSpec {
        name,
        shape: vec![channels],
        initialisation,
        kind: ParameterKind::Trained,
    };
    vec![parameter("weight", Initialisation::Ones), parameter("bias", Initialisation::Zeros)]
}

/// The operations of a norm with statistics of each sample: per element four for mean and variance and four
/// to normalise.
fn norm_flops(output: &Shape) -> u64 {
    (output.elements() as u64).saturating_mul(8)
}

/// The shape of an image with the same channels, whose height and width are changed by `resize`.
fn map_spatial(
    kind: &str,
    inputs: &[&Shape],
    resize: impl FnOnce([usize; 2]) -> Result<[usize; 2], ShapeError>,
) -> Result<Shape, ShapeError> {
    let [channels, height, width] = single_input(kind, inputs)?.as_image()?;
    let [height, width] = resize([height, width])?;
    Ok(Shape::image(channels, height, width))
}

/// Checks the input of a convolution or its transpose, with a weight of this shape: its channels, the groups
/// that divide `[in, out]` channels, and the weight's size. Returns its height and width.
fn expect_conv_input(
    input: &Shape,
    weight: [usize; 4],
    groups: usize,
    [in_channels, out_channels]: [usize; 2],
) -> Result<[usize; 2], ShapeError> {
    let [channels, height, width] = input.as_image()?;
    if channels != in_channels {
        return Err(ShapeError::new(format!(
            "the weight {weight:?} expects {in_channels} channels, but the input {input} has {channels}"
        )));
    }
    let divides = |channels: usize| channels.is_multiple_of(groups);
    if groups == 0 || !divides(in_channels) || !divides(out_channels) {
        return Err(ShapeError::new(format!(
            "{groups} groups do not divide {in_channels} input and {out_channels} output channels"
        )));
    }
    if in_channels == 0 || out_channels == 0 {
        return Err(ShapeError::new(format!(
            "needs at least one input and one output channel, got {in_channels} and {out_channels}"
        )));
    }
    check_tensor_size("the weight", &weight)?;
    Ok([height, width])
}

/// The weight of a convolution or its transpose, and the bias of `bias` elements, initialised as in PyTorch:
/// uniform within `bound`.
fn conv_parameters(weight: [usize; 4], bias: Option<usize>, bound: f32) -> Vec<ParameterSpec> {
    let parameter = |name, shape| ParameterSpec {
        name,
        shape,
        initialisation: Initialisation::Uniform { bound },
        kind: ParameterKind::Trained,
    };
    let weight = parameter("weight", weight.to_vec());
    [weight].into_iter().chain(bias.map(|length| parameter("bias", vec![length]))).collect()
}

/// The operations of a pooling: one per pixel of each window.
fn pooling_flops(kernel: [usize; 2], output: &Shape) -> u64 {
    (output.elements() as u64).saturating_mul(kernel[0].saturating_mul(kernel[1]) as u64)
}

/// The cells of an operation's row on the page of layer files.
fn page_row(attributes: &str, shapes: &str) -> String {
    let space = if attributes.is_empty() { "" } else { " " };
    format!("|{space}{attributes} | {shapes} |")
}

macro_rules! op_enum {
    ($($name:ident),* $(,)?) => {
        /// An operation with its attributes.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Op {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name),)*
        }

        $(impl From<$name> for Op {
            fn from(operation: $name) -> Self {
                Self::$name(operation)
            }
        })*

        impl Op {
            /// Calls [`LayerFileOp::write_attributes`] of the operation.
            pub(crate) fn write_attributes(&self, to: &mut AttributeWriter) {
                match self { $(Self::$name(operation) => operation.write_attributes(to),)* }
            }
        }

        impl Operation for Op {
            fn kind(&self) -> &'static str {
                match self { $(Self::$name(operation) => operation.kind(),)* }
            }
            fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
                match self { $(Self::$name(operation) => operation.output_shape(inputs),)* }
            }
            fn parameters(&self) -> Vec<ParameterSpec> {
                match self { $(Self::$name(operation) => operation.parameters(),)* }
            }
            fn forward_flops(&self, inputs: &[&Shape], output: &Shape) -> u64 {
                match self { $(Self::$name(operation) => operation.forward_flops(inputs, output),)* }
            }
            fn fan_out(&self) -> Option<usize> {
                match self { $(Self::$name(operation) => Operation::fan_out(operation),)* }
            }
            fn is_never_negative(&self, inputs_are: bool) -> bool {
                match self { $(Self::$name(operation) => operation.is_never_negative(inputs_are),)* }
            }
            fn attributes(&self) -> String {
                match self { $(Self::$name(operation) => operation.attributes(),)* }
            }
        }
    };
}

/// Calls a macro with the operations that have a file of one name in every crate: the name, the operation,
/// and its kernels. Arguments for the macro come first, in braces.
///
/// Each crate makes its modules and lists from it. rustfmt does not see such modules: `scripts/format.sh`
/// does.
#[macro_export]
macro_rules! with_operations {
    ($callback:path $(, $($arguments:tt)*)?) => {
        $callback! {
            { $($($arguments)*)? }
            group_norm: GroupNorm [GroupNormForward, GroupNormBackward, GroupNormGradients];
            local_response_norm: LocalResponseNorm [LrnForward, LrnBackward];
            lp_pool2d: LpPool2d [LpPoolForward, LpPoolBackward];
        }
    };
}

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        op_enum!(Activation, $($name),*);

        /// The layer file declarations of all operations, sorted by name.
        pub(crate) static DECLARATIONS: LazyLock<Vec<OpDeclaration>> = LazyLock::new(|| {
            let mut declarations = vec![$(OpDeclaration {
                name: $name::NAME,
                keys: $name::KEYS,
                row: || page_row($name::ATTRIBUTES, $name::SHAPES),
                build: |attributes, inputs| $name::from_attributes(attributes, inputs).map(Op::$name),
                examples: $name::EXAMPLES,
            }),*];
            declarations.extend(activation::DECLARATIONS);
            declarations.sort_by_key(|declaration| declaration.name);
            declarations
        });
    };
}

macro_rules! operation_files {
    ({} $($module:ident: $operation:ident [$($kernel:ident),*];)*) => {
        $(
            mod $module;
            pub use $module::$operation;
        )*
        operations!(
            $($operation,)*
            AdaptiveAvgPool2d,
            Add,
            AvgPool2d,
            BatchNorm2d,
            ChannelScale,
            ChannelShuffle,
            ChannelSlice,
            Concat,
            Conv2d,
            ConvTranspose2d,
            Dropout,
            Dropout2d,
            Flatten,
            LayerNorm2d,
            LayerScale,
            Linear,
            MaxPool2d,
            PointwiseLinear,
            Prelu,
            Relu,
            Relu6,
            Resize,
            Scale,
            StochasticDepth,
        );
    };
}

with_operations!(operation_files);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_file_names_are_the_kinds() {
        let input = Shape::vector(4);
        for declaration in DECLARATIONS.iter() {
            let mut table = toml::Table::new();
            let op = loop {
                match (declaration.build)(&Attributes::new(&table), &[&input]) {
                    Ok(op) => break op,
                    Err(AttributeError::Missing(key)) if !table.contains_key(key) => {
                        table.insert(key.to_owned(), toml::Value::Integer(1));
                    }
                    Err(error) => panic!("{}: {error:?}", declaration.name),
                }
            };
            assert_eq!(op.kind(), declaration.name);
        }
        let names: std::collections::BTreeSet<&str> = DECLARATIONS.iter().map(|op| op.name).collect();
        assert_eq!(names.len(), DECLARATIONS.len(), "two operations have one name");
    }
}
