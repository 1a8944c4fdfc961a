//! The values of a session, read and set from outside: those that outlive an iteration by their names, and
//! those of a program by their numbers.

use super::Session;
use crate::device::Arena;
use crate::plan::{Location, Placement};
use crate::program::{OptimiserState, Origin};
use crate::{DType, EngineError, Layout, Program, Role};
use std::borrow::Cow;

/// A value that outlives an iteration, of all programs of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateValue<'a> {
    /// Its name, by which [`Session::read`] and [`Session::write`] know it.
    pub name: &'a str,
    /// Logical extents.
    pub shape: &'a [usize],
    /// What it is for.
    pub role: Role,
    /// For the state of an optimiser: the name of the parameter, and which state it is.
    pub optimiser_state: Option<(&'a str, OptimiserState)>,
    /// For a moving average: the name of the value that it is the average of.
    pub average_of: Option<&'a str>,
}

/// Everything that a checkpoint keeps of a session with these programs.
pub fn state_of<'a>(
    programs: impl Iterator<Item = &'a Program> + 'a,
) -> impl Iterator<Item = StateValue<'a>> + 'a {
    let mut seen = std::collections::HashSet::new();
    programs
        .flat_map(|program| program.values.iter().map(move |value| (program, value)))
        .filter(move |(_, value)| {
            let is_kept = matches!(
                value.role,
                Role::Parameter | Role::Frozen | Role::Buffer | Role::Momentum | Role::Average
            );
            is_kept && seen.insert(value.name.clone())
        })
        .map(|(program, value)| StateValue {
            name: &value.name,
            shape: &value.shape,
            role: value.role,
            optimiser_state: match value.origin {
                Some(Origin::OptimiserState { of, state }) => Some((&program.value(of).name, state)),
                _ => None,
            },
            average_of: match value.origin {
                Some(Origin::Average(of)) => Some(&program.value(of).name),
                _ => None,
            },
        })
}

impl Session {
    /// Everything a checkpoint keeps: parameters, buffers, their averages and the state of the optimiser.
    pub fn state(&self) -> impl Iterator<Item = StateValue<'_>> + '_ {
        state_of(self.programs.iter().map(|program| &program.plan.program))
    }

    /// Copies a persistent f32 value out, in row-major order of its logical shape.
    ///
    /// # Errors
    /// Where there is none of that name, or it has another type.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, EngineError> {
        let view = self.view(name)?;
        let mut plain = vec![0.0; view.len()];
        view.read(0, &mut plain);
        Ok(plain)
    }

    /// A persistent f32 value where it lies, or on a device as it is now.
    ///
    /// # Errors
    /// Where there is none of that name, or it has another type.
    pub fn view(&self, name: &str) -> Result<View<'_>, EngineError> {
        let (place, shape) = self.find(name)?;
        let values = match place.location {
            Location::Persistent(start) => self.arena.read_as(start, place.bytes)?,
            _ => Cow::Borrowed(&[][..]),
        };
        Ok(View { layout: &place.layout, values, elements: shape.iter().product() })
    }

    /// Sets a persistent f32 value from row-major order. Run the refresh program afterwards, where there is
    /// one.
    ///
    /// # Errors
    /// Where there is none of that name, or the sizes differ.
    pub fn write(&mut self, name: &str, plain: &[f32]) -> Result<(), EngineError> {
        let (place, shape) = self.find(name)?;
        let (place, shape) = (place.clone(), shape.to_vec());
        if plain.len() != shape.iter().product::<usize>() {
            return Err(EngineError::Mismatch(format!(
                "`{name}` has shape {shape:?}, {} values were given",
                plain.len()
            )));
        }
        let Location::Persistent(start) = place.location else { return Ok(()) };
        let mut values = vec![0.0_f32; place.bytes / size_of::<f32>()];
        place.layout.for_each(&shape, |to, from| values[to] = plain[from]);
        self.arena.write(start, bytemuck::cast_slice(&values))
    }

    /// Exchanges the contents of two persistent f32 values. Run the refresh program afterwards, where there
    /// is one.
    ///
    /// # Errors
    /// Where there is none of such a name, or they lie differently.
    pub fn swap(&mut self, first: &str, second: &str) -> Result<(), EngineError> {
        let (one, other) = (self.find(first)?.0, self.find(second)?.0);
        let (bytes, is_alike) = (one.bytes, one.layout.same_bytes(&other.layout));
        match (&one.location, &other.location) {
            (&Location::Persistent(one), &Location::Persistent(other)) if is_alike => {
                self.arena.swap([one, other], bytes)
            }
            _ => Err(EngineError::Mismatch(format!("`{first}` and `{second}` lie differently"))),
        }
    }

    fn find(&self, name: &str) -> Result<(&Placement, &[usize]), EngineError> {
        let missing = || EngineError::Mismatch(format!("the network has no parameter `{name}`"));
        let value = self
            .programs
            .iter()
            .flat_map(|program| &program.plan.program.values)
            .find(|value| value.name == name)
            .ok_or_else(missing)?;
        if value.dtype != DType::F32 {
            return Err(EngineError::Mismatch(format!("`{name}` is {}, not f32", value.dtype)));
        }
        Ok((self.persistent.values.get(name).ok_or_else(missing)?, &value.shape))
    }

    /// Fills the arena with one byte, for tests: what no kernel writes can be told from what one did.
    ///
    /// # Errors
    /// What a device said.
    pub fn fill(&mut self, byte: u8) -> Result<(), EngineError> {
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

    /// Sets a value of a program of any type from row-major order, and its padding to zero, for tests.
    ///
    /// # Errors
    /// Where the sizes differ, or the caller provides the value's memory.
    pub fn write_value(&mut self, program: usize, value: usize, plain: &[f64]) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (place, described) = (&plan.placements[value], &plan.program.values[value]);
        let start = match place.location {
            Location::Persistent(start) => start,
            Location::Transient(start) => self.persistent.bytes + start,
            Location::External(_) => {
                return Err(EngineError::Mismatch(format!("`{}` is not in the arena", described.name)));
            }
        };
        if plain.len() != described.elements() {
            return Err(EngineError::Mismatch(format!(
                "`{}` has shape {:?}, {} values were given",
                described.name,
                described.shape,
                plain.len()
            )));
        }
        let mut bytes = vec![0; place.bytes];
        place
            .layout
            .for_each(&described.shape, |to, from| described.dtype.store(&mut bytes, to, plain[from]));
        self.arena.write(start, &bytes)
    }

    /// Reads a value of a program of any type in row-major order; see [`Session::raw`].
    ///
    /// # Errors
    /// What a device said.
    pub fn read_value(&self, program: usize, value: usize) -> Result<Vec<f64>, EngineError> {
        let plan = &self.programs[program].plan;
        let (place, described) = (&plan.placements[value], &plan.program.values[value]);
        let bytes = self.raw(program, value)?;
        let mut plain = vec![f64::NAN; described.elements()];
        if !bytes.is_empty() {
            place
                .layout
                .for_each(&described.shape, |from, to| plain[to] = described.dtype.load(&bytes, from));
        }
        Ok(plain)
    }

    /// Reads a value of a program in row-major order as f32 into `to`, which keeps its memory; see
    /// [`Session::raw`]. Numbers of more bits are rounded.
    ///
    /// # Errors
    /// What a device said.
    pub fn read_f32(&self, program: usize, value: usize, to: &mut Vec<f32>) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (place, described) = (&plan.placements[value], &plan.program.values[value]);
        let bytes = self.raw(program, value)?;
        to.clear();
        if described.dtype == DType::F32 && place.layout.is_row_major() {
            to.extend(bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned::<f32>));
            return Ok(());
        }
        to.resize(described.elements(), f32::NAN);
        if !bytes.is_empty() {
            place
                .layout
                .for_each(&described.shape, |from, at| to[at] = described.dtype.load(&bytes, from) as f32);
        }
        Ok(())
    }

    /// Reads an i32 value of a program in row-major order into `to`, which keeps its memory; see
    /// [`Session::raw`].
    ///
    /// # Errors
    /// Where it has another type or layout, or what a device said.
    pub fn read_labels(&self, program: usize, value: usize, to: &mut Vec<i32>) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (place, described) = (&plan.placements[value], &plan.program.values[value]);
        if described.dtype != DType::I32 || !place.layout.is_row_major() {
            return Err(EngineError::Mismatch(format!(
                "`{}` is {} in layout {}, not i32 in row-major order",
                described.name, described.dtype, place.layout.tag
            )));
        }
        let bytes = self.raw(program, value)?;
        to.clear();
        to.extend(bytes.chunks_exact(size_of::<i32>()).map(bytemuck::pod_read_unaligned::<i32>));
        Ok(())
    }

    /// Reads any value of a program as it lies. Transient ones hold what the last step that used their bytes
    /// left: after a run, the inputs of the last step are whole.
    ///
    /// # Errors
    /// What a device said.
    pub fn raw(&self, program: usize, value: usize) -> Result<Cow<'_, [u8]>, EngineError> {
        let plan = &self.programs[program].plan;
        let place = &plan.placements[value];
        let start = match place.location {
            Location::Persistent(start) => start,
            Location::Transient(start) => self.persistent.bytes + start,
            Location::External(_) => return Ok(Cow::Borrowed(&[])),
        };
        self.arena.read_as(start, place.bytes)
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
    /// Elements, without padding.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a value has elements")]
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Copies out as many elements as `out` holds, from `first` on; both must lie within the value.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let range = first..first + out.len();
        if self.layout.is_row_major() {
            out.copy_from_slice(&self.values[range]);
        } else {
            self.layout.for_each_of(range, |from, plain| out[plain - first] = self.values[from]);
        }
    }
}
