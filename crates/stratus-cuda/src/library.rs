//! cuDNN and cuBLAS as calls of steps, and the choice among what computes the same.

use crate::ffi::cublas::{Cublas, Product};
use crate::ffi::cudnn::{ConvolutionPlan, Cudnn, Problem};
use crate::ffi::driver::{Event, Gpu, Memory};
use crate::processor::{Argument, Call, Made};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use stratus_engine::Tile;
use stratus_engine::backend::Operands;

/// A convolution by cuDNN.
pub(crate) struct Convolve {
    pub plan: ConvolutionPlan,
    /// Input, weight, output, or their gradients.
    pub operands: [Argument; 3],
    /// Where its workspace begins in the scratch.
    pub workspace: usize,
}

impl Call for Convolve {
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        let workspace = match self.plan.workspace {
            0 => 0,
            _ => Argument::Scratch(self.workspace).word(operands, scratch),
        };
        self.plan.enqueue(self.operands.map(|argument| argument.word(operands, scratch)), workspace)
    }
}

/// A matrix product by cuBLAS.
pub(crate) struct Multiply {
    pub cublas: Arc<Cublas>,
    pub product: Product,
    /// The factors, and the result.
    pub operands: [Argument; 3],
}

impl Call for Multiply {
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        let [a, b, c] = self.operands.map(|argument| argument.word(operands, scratch));
        self.cublas.multiply(&self.product, a, b, c)
    }
}

/// One way to compute something.
pub(crate) struct Candidate {
    /// What it is called in plans.
    pub name: String,
    pub calls: Vec<Box<dyn Call>>,
    pub scratch_bytes: usize,
}

impl From<Candidate> for Made {
    fn from(Candidate { name, calls, scratch_bytes }: Candidate) -> Self {
        Self { implementation: name, calls, scratch_bytes }
    }
}

/// What is asked of a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<'a> {
    /// The one of this name.
    For(&'a str),
    /// The fastest.
    Measured,
    /// The first.
    Any,
}

/// The libraries of a GPU.
pub(crate) struct Library {
    pub gpu: Arc<Gpu>,
    pub cudnn: Arc<Cudnn>,
    pub cublas: Arc<Cublas>,
    /// Whether f32 may be rounded to TF32 where that is multiplied.
    pub tf32: bool,
    /// What was the fastest.
    known: Mutex<HashMap<Problem, String>>,
    /// Memory that candidates are measured on.
    room: Mutex<Option<Memory>>,
}

/// What every operand begins at a multiple of, while candidates are measured.
const ALIGNMENT: usize = 256;
/// Runs that the shortest is taken of.
const BEST_OF: usize = 3;

impl Library {
    pub fn new(gpu: &Arc<Gpu>, tf32: bool) -> Result<Self, String> {
        Ok(Self {
            gpu: Arc::clone(gpu),
            cudnn: Arc::new(Cudnn::new(gpu)?),
            cublas: Arc::new(Cublas::new(gpu)?),
            tf32,
            known: Mutex::default(),
            room: Mutex::default(),
        })
    }

    /// The name that a choice will come to, where that is certain.
    pub fn known(&self, problem: &Problem, asked: Asked<'_>) -> Option<String> {
        match asked {
            Asked::For(name) => Some(name.to_owned()),
            Asked::Measured => {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).get(problem).cloned()
            }
            Asked::Any => None,
        }
    }

    /// The candidate that is asked for. `operands` are positions and bytes.
    pub fn choose(
        &self,
        problem: &Problem,
        mut candidates: Vec<Candidate>,
        operands: impl Iterator<Item = (usize, usize)>,
        asked: Asked<'_>,
    ) -> Result<Candidate, String> {
        let named = |name: &str| candidates.iter().position(|candidate| candidate.name == name);
        let position = match asked {
            Asked::For(name) => named(name).ok_or_else(|| format!("it has no implementation `{name}`"))?,
            Asked::Any => 0,
            Asked::Measured => {
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(problem).cloned();
                match known.and_then(|name| named(&name)) {
                    Some(position) => position,
                    None => {
                        let fastest = self.fastest(&mut candidates, operands)?;
                        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                        known.insert(*problem, candidates[fastest].name.clone());
                        fastest
                    }
                }
            }
        };
        Ok(candidates.swap_remove(position))
    }

    /// Gives the memory back that candidates were measured on.
    pub fn clear_room(&self) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn fastest(
        &self,
        candidates: &mut [Candidate],
        operands: impl Iterator<Item = (usize, usize)>,
    ) -> Result<usize, String> {
        if candidates.len() == 1 {
            return Ok(0);
        }
        let operands: Vec<(usize, usize)> = operands.collect();
        let scratch = operands.iter().map(|(position, _)| position + 1).max().unwrap_or(0);
        let mut places = Operands::new(Tile::WHOLE);
        let mut bytes = 0;
        for &(position, size) in &operands {
            places.set_address(position, bytes as u64);
            bytes += size.next_multiple_of(ALIGNMENT);
        }
        places.set_address(scratch, bytes as u64);
        bytes += candidates.iter().map(|candidate| candidate.scratch_bytes).max().unwrap_or(0);
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        if room.as_ref().is_none_or(|room| room.bytes() < bytes) {
            *room = None;
            *room = Some(Memory::filled(&self.gpu, bytes, 0x3c)?);
        }
        let base = room.as_ref().map_or(0, Memory::address);
        for position in operands.iter().map(|&(position, _)| position).chain([scratch]) {
            places.set_address(position, base + places.address(position));
        }
        let marks = [Event::new(&self.gpu)?, Event::new(&self.gpu)?];
        let mut times = vec![u64::MAX; candidates.len()];
        let mut failure = String::new();
        for (candidate, best) in candidates.iter_mut().zip(&mut times) {
            for run in 0..=BEST_OF {
                let measured = self.measure(candidate, &places, scratch, &marks);
                match measured {
                    // The first run loads the kernel.
                    Ok(_) if run == 0 => {}
                    Ok(time) => *best = time.min(*best),
                    Err(reason) => {
                        failure = reason;
                        break;
                    }
                }
            }
        }
        let fastest = (0..times.len()).min_by_key(|&candidate| times[candidate]);
        fastest.filter(|&candidate| times[candidate] < u64::MAX).ok_or(failure)
    }

    fn measure(
        &self,
        candidate: &mut Candidate,
        places: &Operands<'_>,
        scratch: usize,
        marks: &[Event; 2],
    ) -> Result<u64, String> {
        marks[0].record(false)?;
        candidate.calls.iter_mut().try_for_each(|call| call.enqueue(places, scratch))?;
        marks[1].record(false)?;
        self.gpu.wait()?;
        marks[1].since(&marks[0])
    }
}
