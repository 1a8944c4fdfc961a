//! Access to the values of a session: persistent values by name, those of a program by index.

use super::Session;
use crate::device::Arena;
use crate::plan::{Location, Placement};
use crate::program::{OptimiserState, Origin};
use crate::{DType, EngineError, Layout, Program, Role};
use std::borrow::Cow;

/// A persistent value of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateValue<'a> {
    /// The name for [`Session::read`] and [`Session::write`].
    pub name: &'a str,
    /// Logical extents.
    pub shape: &'a [usize],
    /// Its role.
    pub role: Role,
    /// For optimiser state: the name of the parameter and the kind of state.
    pub optimiser_state: Option<(&'a str, OptimiserState)>,
    /// For a moving average: the name of the averaged value.
    pub average_of: Option<&'a str>,
}

/// The values that a checkpoint of a session with these programs contains.
pub fn checkpoint_values<'a>(
    programs: impl Iterator<Item = &'a Program> + 'a,
) -> impl Iterator<Item = StateValue<'a>> + 'a {
    let mut seen = std::collections::HashSet::new();
    programs
        .flat_map(|program| program.values.iter().map(move |value| (program, value)))
        .filter(move |(_, value)| {
            let is_kept = matches!(
                value.role,
                Role::Parameter | Role::Frozen | Role::Buffer | Role::OptimiserState | Role::Average
            );
            is_kept && seen.insert(value.name.clone())
        })
        .map(|(program, value)| StateValue {
            name: &value.name,
            shape: &value.shape,
            role: value.role,
            optimiser_state: match value.origin {
                Some(Origin::OptimiserState { parameter, state }) => {
                    Some((&program.value(parameter).name, state))
                }
                _ => None,
            },
            average_of: match value.origin {
                Some(Origin::Average(averaged)) => Some(&program.value(averaged).name),
                _ => None,
            },
        })
}

impl Session {
    /// The values of a checkpoint: parameters, buffers, their averages and optimiser state.
    pub fn state(&self) -> impl Iterator<Item = StateValue<'_>> + '_ {
        checkpoint_values(self.programs.iter().map(|program| &program.plan.program))
    }

    /// Copies a persistent f32 value out, in row-major order of its logical shape.
    ///
    /// # Errors
    /// If there is no such value, or it is not f32.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, EngineError> {
        let view = self.view(name)?;
        let mut plain = vec![0.0; view.len()];
        view.read(0, &mut plain);
        Ok(plain)
    }

    /// A view of a persistent f32 value; on a device, a copy of its current contents.
    ///
    /// # Errors
    /// If there is no such value, or it is not f32.
    pub fn view(&self, name: &str) -> Result<View<'_>, EngineError> {
        let (placement, shape) = self.find(name)?;
        let values = match placement.location {
            Location::Persistent(start) => self.arena.read_as(start, placement.bytes)?,
            _ => Cow::Borrowed(&[][..]),
        };
        Ok(View { layout: &placement.layout, values, elements: shape.iter().product() })
    }

    /// Sets a persistent f32 value from row-major order. Run the refresh program, if any, afterwards.
    ///
    /// # Errors
    /// If there is no such value, or the sizes differ.
    pub fn write(&mut self, name: &str, plain: &[f32]) -> Result<(), EngineError> {
        let (placement, shape) = self.find(name)?;
        let (placement, shape) = (placement.clone(), shape.to_vec());
        if plain.len() != shape.iter().product::<usize>() {
            return Err(EngineError::InvalidRequest(format!(
                "`{name}` has shape {shape:?}, got {} values",
                plain.len()
            )));
        }
        let Location::Persistent(start) = placement.location else { return Ok(()) };
        let mut values = vec![0.0_f32; placement.bytes / size_of::<f32>()];
        placement.layout.for_each(&shape, |to, from| values[to] = plain[from]);
        self.arena.write(start, bytemuck::cast_slice(&values))
    }

    /// Sets a persistent value of signed bytes from row-major order.
    ///
    /// # Errors
    /// If there is no such value, it has another type, or the sizes differ.
    pub fn write_bytes(&mut self, name: &str, plain: &[i8]) -> Result<(), EngineError> {
        let (placement, shape) = self.find_as(name, DType::I8)?;
        let (placement, elements) = (placement.clone(), shape.iter().product::<usize>());
        if plain.len() != elements {
            return Err(EngineError::InvalidRequest(format!(
                "`{name}` has shape {shape:?}, got {} values",
                plain.len()
            )));
        }
        let Location::Persistent(start) = placement.location else { return Ok(()) };
        let mut values = vec![0_i8; placement.bytes];
        placement.layout.for_each_of(0..elements, |to, from| values[to] = plain[from]);
        self.arena.write(start, bytemuck::cast_slice(&values))
    }

    /// Swaps the contents of two persistent f32 values. Run the refresh program, if any, afterwards.
    ///
    /// # Errors
    /// If a value does not exist, or their layouts differ.
    pub fn swap(&mut self, first: &str, second: &str) -> Result<(), EngineError> {
        let (one, other) = (self.find(first)?.0, self.find(second)?.0);
        let (bytes, is_alike) = (one.bytes, one.layout.same_bytes(&other.layout));
        match (&one.location, &other.location) {
            (&Location::Persistent(one), &Location::Persistent(other)) if is_alike => {
                self.arena.swap([one, other], bytes)
            }
            _ => Err(EngineError::InvalidRequest(format!("`{first}` and `{second}` differ in layout"))),
        }
    }

    fn find(&self, name: &str) -> Result<(&Placement, &[usize]), EngineError> {
        self.find_as(name, DType::F32)
    }

    fn find_as(&self, name: &str, dtype: DType) -> Result<(&Placement, &[usize]), EngineError> {
        let missing = || EngineError::InvalidRequest(format!("the network has no parameter `{name}`"));
        let value = self
            .programs
            .iter()
            .flat_map(|program| &program.plan.program.values)
            .find(|value| value.name == name)
            .ok_or_else(missing)?;
        if value.dtype != dtype {
            return Err(EngineError::InvalidRequest(format!("`{name}` is {}, not {dtype}", value.dtype)));
        }
        Ok((self.persistent.values.get(name).ok_or_else(missing)?, &value.shape))
    }

    /// Fills the arena with one byte, so that tests recognise values that no kernel wrote.
    ///
    /// # Errors
    /// The device's error message.
    pub fn fill_arena(&mut self, byte: u8) -> Result<(), EngineError> {
        match &mut self.arena {
            Arena::Host(arena) => {
                arena.as_mut_slice().fill(byte);
                Ok(())
            }
            Arena::Device(arena) => {
                let bytes = vec![byte; arena.bytes];
                arena.device.write(arena.address, &bytes)
            }
        }
    }

    /// Sets a value of any type from row-major order, and its padding to zero, for tests.
    ///
    /// # Errors
    /// If the sizes differ, or the value is external.
    pub fn write_value(&mut self, program: usize, value: usize, plain: &[f64]) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (placement, value_info) = (&plan.placements[value], &plan.program.values[value]);
        let start = match placement.location {
            Location::Persistent(start) => start,
            Location::Transient(start) => self.persistent.bytes + start,
            Location::External(_) => {
                return Err(EngineError::InvalidRequest(format!(
                    "`{}` is not in the arena",
                    value_info.name
                )));
            }
        };
        if plain.len() != value_info.elements() {
            return Err(EngineError::InvalidRequest(format!(
                "`{}` has shape {:?}, got {} values",
                value_info.name,
                value_info.shape,
                plain.len()
            )));
        }
        let mut bytes = vec![0; placement.bytes];
        placement
            .layout
            .for_each(&value_info.shape, |to, from| value_info.dtype.store(&mut bytes, to, plain[from]));
        self.arena.write(start, &bytes)
    }

    /// Reads a value of any type in row-major order; see [`Session::raw_bytes`].
    ///
    /// # Errors
    /// The device's error message.
    pub fn read_value(&self, program: usize, value: usize) -> Result<Vec<f64>, EngineError> {
        let plan = &self.programs[program].plan;
        let (placement, value_info) = (&plan.placements[value], &plan.program.values[value]);
        let bytes = self.raw_bytes(program, value)?;
        let mut plain = vec![f64::NAN; value_info.elements()];
        if !bytes.is_empty() {
            placement
                .layout
                .for_each(&value_info.shape, |from, to| plain[to] = value_info.dtype.load(&bytes, from));
        }
        Ok(plain)
    }

    /// Reads a value in row-major order as f32 into `to`, reusing its memory; see [`Session::raw_bytes`].
    /// Wider types are rounded.
    ///
    /// # Errors
    /// The device's error message.
    pub fn read_f32(&self, program: usize, value: usize, to: &mut Vec<f32>) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (placement, value_info) = (&plan.placements[value], &plan.program.values[value]);
        let bytes = self.raw_bytes(program, value)?;
        to.clear();
        if value_info.dtype == DType::F32 && placement.layout.is_row_major() {
            to.extend(bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned::<f32>));
            return Ok(());
        }
        to.resize(value_info.elements(), f32::NAN);
        if !bytes.is_empty() {
            placement
                .layout
                .for_each(&value_info.shape, |from, at| to[at] = value_info.dtype.load(&bytes, from) as f32);
        }
        Ok(())
    }

    /// Reads an i32 value in row-major order into `to`, reusing its memory; see [`Session::raw_bytes`].
    ///
    /// # Errors
    /// If it has another type or layout, or the device fails.
    pub fn read_labels(&self, program: usize, value: usize, to: &mut Vec<i32>) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (placement, value_info) = (&plan.placements[value], &plan.program.values[value]);
        if value_info.dtype != DType::I32 || !placement.layout.is_row_major() {
            return Err(EngineError::InvalidRequest(format!(
                "`{}` is {} in layout {}, not i32 in row-major order",
                value_info.name, value_info.dtype, placement.layout.tag
            )));
        }
        let bytes = self.raw_bytes(program, value)?;
        to.clear();
        to.extend(bytes.chunks_exact(size_of::<i32>()).map(bytemuck::pod_read_unaligned::<i32>));
        Ok(())
    }

    /// Reads the bytes of any value in its layout. Transient values contain the bytes left by the last step
    /// that used their memory; after a run, the inputs of the last step are intact.
    ///
    /// # Errors
    /// The device's error message.
    pub fn raw_bytes(&self, program: usize, value: usize) -> Result<Cow<'_, [u8]>, EngineError> {
        let plan = &self.programs[program].plan;
        let placement = &plan.placements[value];
        let start = match placement.location {
            Location::Persistent(start) => start,
            Location::Transient(start) => self.persistent.bytes + start,
            Location::External(_) => return Ok(Cow::Borrowed(&[])),
        };
        self.arena.read_as(start, placement.bytes)
    }
}

/// A value of a session, read in row-major order of its logical shape.
#[derive(Clone, Debug)]
pub struct View<'a> {
    layout: &'a Layout,
    values: Cow<'a, [f32]>,
    elements: usize,
}

impl View<'_> {
    /// The number of elements, without padding.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a value has elements")]
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Fills `out` with the elements starting at `first`; they must be within the value.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let range = first..first + out.len();
        if self.layout.is_row_major() {
            out.copy_from_slice(&self.values[range]);
        } else {
            self.layout.for_each_of(range, |from, plain| out[plain - first] = self.values[from]);
        }
    }
}
