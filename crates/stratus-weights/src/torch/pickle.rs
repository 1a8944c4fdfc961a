//! A reader of the part of Python's pickle that state dicts use.
//!
//! A pickle is a program for a machine with a stack and a memo, written down in CPython's `pickletools`:
//! <https://docs.python.org/3/library/pickletools.html>. Python's machine can call anything that can be
//! imported. This one has a closed list of globals, and each is a case of a match that builds plain data:
//! nothing can be called. What is not on the list is refused by name.
//!
//! Objects live in one vector and name each other by index, so that neither depth nor cycles of a pickle
//! become recursion here. The number of objects, the stack and the memo are limited.

mod globals;
mod op;

use std::collections::HashMap;

use self::globals::Global;
use crate::Dtype;
use crate::error::{Parsed, Problem};

/// Objects of a pickle. A state dict needs about 25 a tensor.
const OBJECT_LIMIT: usize = 1 << 20;
const STACK_LIMIT: usize = 1 << 20;
const MEMO_LIMIT: usize = 1 << 20;
/// Extents of a tensor.
const RANK_LIMIT: usize = 16;
/// Arguments of a call: `_rebuild_tensor_v2` has seven.
const ARGUMENT_LIMIT: usize = 7;

/// An object of a pickle, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(u32);

/// An object of a pickle. Text is the pickle's own.
#[derive(Debug)]
pub(super) enum Object<'a> {
    None,
    Bool,
    Int(i64),
    Float,
    Text(&'a str),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage<'a>),
    Tensor(View<'a>),
    /// Bytes, a set, an integer of more than 64 bits: nothing that is looked into.
    Opaque,
    /// An object that training programs put beside weights, such as their arguments; nothing of it is kept.
    Plain,
}

impl Object<'_> {
    pub fn describe(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool => "a truth value",
            Self::Int(_) => "an integer",
            Self::Float => "a number",
            Self::Text(_) => "text",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Dict(_) => "a dict",
            Self::Global(_) => "a function",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "a single tensor",
            Self::Opaque => "bytes, a set or a large number",
            Self::Plain => "a plain object",
        }
    }
}

/// A storage: a file of the archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub key: &'a str,
    pub dtype: Dtype,
    pub elements: u64,
}

/// A tensor: a view of a storage.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub storage: Storage<'a>,
    /// The element of the storage that is the first.
    pub offset: u64,
    pub shape: Vec<usize>,
    /// In elements; none where the elements lie row-major and dense.
    pub strides: Option<Vec<u64>>,
}

/// All objects of a pickle.
pub(super) struct Objects<'a> {
    all: Vec<Object<'a>>,
    pub root: Id,
}

impl<'a> Objects<'a> {
    pub fn get(&self, id: Id) -> &Object<'a> {
        &self.all[id.0 as usize]
    }
}

/// Reads a pickle.
pub(super) fn load(bytes: &[u8]) -> Parsed<Objects<'_>> {
    let mut machine =
        Machine { bytes, at: 0, all: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
    loop {
        if machine.step()? {
            let root = machine.pop()?;
            return Ok(Objects { all: machine.all, root });
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    all: Vec<Object<'a>>,
    stack: Vec<Id>,
    /// The heights of the stack at its marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    /// Executes an instruction; true where it was the last.
    fn step(&mut self) -> Parsed<bool> {
        let opcode = self.u8()?;
        match opcode {
            op::STOP => return Ok(true),
            op::PROTO => {
                let version = self.u8()?;
                if !(2..=5).contains(&version) {
                    return Err(Problem::damaged(format!("its pickle is of protocol {version}")));
                }
            }
            op::FRAME => drop(self.take(8)?),
            op::MARK => {
                if self.marks.len() == STACK_LIMIT {
                    return Err(Problem::Limit { what: "marks in the pickle", limit: STACK_LIMIT });
                }
                self.marks.push(self.stack.len());
            }
            op::POP => drop(self.pop()?),
            op::POP_MARK => drop(self.pop_mark()?),
            op::NONE => self.push(Object::None)?,
            op::NEWTRUE | op::NEWFALSE => self.push(Object::Bool)?,
            op::BINFLOAT => {
                self.take(8)?;
                self.push(Object::Float)?;
            }
            op::BININT => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Object::Int(value.into()))?;
            }
            op::BININT1 => {
                let value = self.u8()?;
                self.push(Object::Int(value.into()))?;
            }
            op::BININT2 => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Object::Int(value.into()))?;
            }
            op::LONG1 => self.long()?,
            op::BINUNICODE => self.text(4)?,
            op::SHORT_BINUNICODE => self.text(1)?,
            op::BINUNICODE8 => self.text(8)?,
            op::SHORT_BINBYTES => self.opaque(1)?,
            op::BINBYTES => self.opaque(4)?,
            op::BINBYTES8 => self.opaque(8)?,
            op::EMPTY_TUPLE => self.push(Object::Tuple(Vec::new()))?,
            op::TUPLE1 => self.short_tuple(1)?,
            op::TUPLE2 => self.short_tuple(2)?,
            op::TUPLE3 => self.short_tuple(3)?,
            op::TUPLE => {
                let items = self.pop_mark()?;
                self.push(Object::Tuple(items))?;
            }
            op::EMPTY_LIST => self.push(Object::List(Vec::new()))?,
            op::LIST => {
                let items = self.pop_mark()?;
                self.push(Object::List(items))?;
            }
            op::APPEND => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            op::APPENDS => {
                let items = self.pop_mark()?;
                self.append(&items)?;
            }
            op::EMPTY_DICT => self.push(Object::Dict(Vec::new()))?,
            op::DICT => {
                let items = self.pop_mark()?;
                self.push(Object::Dict(Vec::new()))?;
                self.set_items(&items)?;
            }
            op::SETITEM => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(&[key, value])?;
            }
            op::SETITEMS => {
                let items = self.pop_mark()?;
                self.set_items(&items)?;
            }
            op::EMPTY_SET => self.push(Object::Opaque)?,
            op::ADDITEMS => {
                self.pop_mark()?;
                let (Object::Opaque | Object::Plain) = self.top()? else {
                    return Err(self.nonsense("adds to what is no set"));
                };
            }
            op::FROZENSET => {
                self.pop_mark()?;
                self.push(Object::Opaque)?;
            }
            op::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Object::Global(Global::named(module, name)?))?;
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (&Object::Text(module), &Object::Text(name)) = (self.get(module), self.get(name)) else {
                    return Err(self.nonsense("names a global by what is no text"));
                };
                self.push(Object::Global(Global::named(module, name)?))?;
            }
            op::REDUCE => self.reduce()?,
            op::NEWOBJ => self.new_object(1)?,
            op::NEWOBJ_EX => self.new_object(2)?,
            op::BUILD => self.build()?,
            op::BINPERSID => self.persistent()?,
            op::BINGET => {
                let key = self.u8()?;
                self.recall(key.into())?;
            }
            op::LONG_BINGET => {
                let key = u32::from_le_bytes(self.array()?);
                self.recall(key)?;
            }
            op::BINPUT => {
                let key = self.u8()?;
                self.memorise(key.into())?;
            }
            op::LONG_BINPUT => {
                let key = u32::from_le_bytes(self.array()?);
                self.memorise(key)?;
            }
            // The memo has at most MEMO_LIMIT entries.
            op::MEMOIZE => self.memorise(self.memo.len() as u32)?,
            other => {
                let at = self.at - 1;
                return Err(Problem::Refused(format!(
                    "the pickle has the instruction 0x{other:02x} at byte {at}"
                )));
            }
        }
        Ok(false)
    }

    fn take(&mut self, count: usize) -> Parsed<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or_else(|| Problem::damaged("its pickle is cut short"))?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Parsed<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Bytes behind a length of so many bytes.
    fn sized(&mut self, width: usize) -> Parsed<&'a [u8]> {
        let length = self.take(width)?.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn text(&mut self, width: usize) -> Parsed<()> {
        // Python lets lone surrogates through, which are no UTF-8 and in no name.
        let text =
            str::from_utf8(self.sized(width)?).map_err(|_| self.nonsense("has text that is no UTF-8"))?;
        self.push(Object::Text(text))
    }

    fn opaque(&mut self, width: usize) -> Parsed<()> {
        self.sized(width)?;
        self.push(Object::Opaque)
    }

    fn line(&mut self) -> Parsed<&'a str> {
        let rest = &self.bytes[self.at..];
        let length = rest
            .iter()
            .position(|&b| b == b'\n')
            .ok_or_else(|| Problem::damaged("its pickle is cut short"))?;
        self.at += length + 1;
        str::from_utf8(&rest[..length]).map_err(|_| self.nonsense("has a name that is no UTF-8"))
    }

    /// A little-endian integer in two's complement.
    fn long(&mut self) -> Parsed<()> {
        let bytes = self.sized(1)?;
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let mut value = [if negative { 0xff } else { 0 }; 8];
        match value.get_mut(..bytes.len()) {
            Some(low) => {
                low.copy_from_slice(bytes);
                self.push(Object::Int(i64::from_le_bytes(value)))
            }
            None => self.push(Object::Opaque),
        }
    }

    fn push(&mut self, object: Object<'a>) -> Parsed<()> {
        if self.all.len() == OBJECT_LIMIT {
            return Err(Problem::Limit { what: "objects in the pickle", limit: OBJECT_LIMIT });
        }
        // At most OBJECT_LIMIT.
        let id = Id(self.all.len() as u32);
        self.all.push(object);
        self.push_id(id)
    }

    fn push_id(&mut self, id: Id) -> Parsed<()> {
        if self.stack.len() == STACK_LIMIT {
            return Err(Problem::Limit { what: "objects on the pickle's stack", limit: STACK_LIMIT });
        }
        self.stack.push(id);
        Ok(())
    }

    fn get(&self, id: Id) -> &Object<'a> {
        &self.all[id.0 as usize]
    }

    fn pop(&mut self) -> Parsed<Id> {
        // What lies below a mark is the mark's.
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err(self.nonsense("takes from an empty stack"));
        }
        self.stack.pop().ok_or_else(|| self.nonsense("takes from an empty stack"))
    }

    fn pop_mark(&mut self) -> Parsed<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(|| self.nonsense("looks for a mark that is not there"))?;
        Ok(self.stack.split_off(mark))
    }

    /// The object on top of the stack.
    fn top(&mut self) -> Parsed<&mut Object<'a>> {
        let id = self.pop()?;
        self.stack.push(id);
        Ok(&mut self.all[id.0 as usize])
    }

    fn nonsense(&self, what: &str) -> Problem {
        Problem::damaged(format!("its pickle {what} before byte {}", self.at))
    }

    fn recall(&mut self, key: u32) -> Parsed<()> {
        let id = *self.memo.get(&key).ok_or_else(|| self.nonsense("recalls what it has not kept"))?;
        self.push_id(id)
    }

    fn memorise(&mut self, key: u32) -> Parsed<()> {
        let id = self.pop()?;
        self.stack.push(id);
        if self.memo.len() == MEMO_LIMIT {
            return Err(Problem::Limit { what: "objects kept in the pickle's memo", limit: MEMO_LIMIT });
        }
        self.memo.insert(key, id);
        Ok(())
    }

    fn short_tuple(&mut self, count: usize) -> Parsed<()> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Object::Tuple(items))
    }

    fn append(&mut self, items: &[Id]) -> Parsed<()> {
        match self.top()? {
            Object::List(list) => list.extend_from_slice(items),
            Object::Plain => {}
            _ => return Err(self.nonsense("appends to what is no list")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Parsed<()> {
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(self.nonsense("has a key without a value"));
        };
        match self.top()? {
            Object::Dict(dict) => dict.extend(pairs.iter().map(|&[key, value]| (key, value))),
            Object::Plain => {}
            _ => return Err(self.nonsense("sets an item of what is no dict")),
        }
        Ok(())
    }

    /// Sets the attributes of an object. State dicts have versions of modules there, which no tensor depends
    /// on.
    fn build(&mut self) -> Parsed<()> {
        self.pop()?;
        match self.top()? {
            Object::Dict(_) | Object::Tensor(_) | Object::Plain => Ok(()),
            other => {
                let what = other.describe();
                Err(Problem::Refused(format!("the pickle sets attributes of {what}")))
            }
        }
    }

    /// Calls a function, of the closed list.
    fn reduce(&mut self) -> Parsed<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (&Object::Global(function), Object::Tuple(arguments)) = (self.get(function), self.get(arguments))
        else {
            return Err(self.nonsense("calls what is no function"));
        };
        // Copied, so only where they are few: a pickle can call with the same long tuple again and again.
        let arguments: Vec<Id> = arguments.iter().take(ARGUMENT_LIMIT + 1).copied().collect();
        match (function, arguments.as_slice()) {
            (Global::OrderedDict, []) => self.push(Object::Dict(Vec::new())),
            // What is made of the arguments is not needed: the object stands for itself.
            (Global::Plain, _) => self.push(Object::Plain),
            (Global::Set, _) => self.push(Object::Opaque),
            (Global::Size, &[extents]) if matches!(self.get(extents), Object::Tuple(_)) => {
                self.push_id(extents)
            }
            (Global::RebuildTensor, &[storage, offset, shape, strides, ..]) if arguments.len() <= 7 => {
                let view = self.view(storage, offset, shape, strides)?;
                self.push(Object::Tensor(view))
            }
            (Global::RebuildParameter, &[data, _, _]) if matches!(self.get(data), Object::Tensor(_)) => {
                self.push_id(data)
            }
            _ => {
                Err(Problem::Refused(format!("the pickle calls {function:?} with arguments of other kinds")))
            }
        }
    }

    /// Makes an object of a class of the closed list, behind so many arguments; nothing is called.
    fn new_object(&mut self, arguments: usize) -> Parsed<()> {
        for _ in 0..arguments {
            self.pop()?;
        }
        let class = self.pop()?;
        match self.get(class) {
            Object::Global(Global::Plain) => self.push(Object::Plain),
            other => {
                let what = other.describe();
                Err(Problem::Refused(format!("the pickle makes an object of {what}")))
            }
        }
    }

    /// The storage of a persistent id: ('storage', type, key, device, elements).
    fn persistent(&mut self) -> Parsed<()> {
        let id = self.pop()?;
        let storage = match self.get(id) {
            Object::Tuple(parts) => match parts.as_slice() {
                &[kind, dtype, key, _device, elements] => {
                    match (self.get(kind), self.get(dtype), self.get(key), self.get(elements)) {
                        (
                            Object::Text("storage"),
                            &Object::Global(Global::Storage(dtype)),
                            &Object::Text(key),
                            &Object::Int(elements),
                        ) => u64::try_from(elements).ok().map(|elements| Storage { key, dtype, elements }),
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        };
        let storage = storage.ok_or_else(|| self.nonsense("refers to something else than a storage"))?;
        self.push(Object::Storage(storage))
    }

    fn view(&self, storage: Id, offset: Id, shape: Id, strides: Id) -> Parsed<View<'a>> {
        let (Object::Storage(storage), &Object::Int(offset)) = (self.get(storage), self.get(offset)) else {
            return Err(self.nonsense("rebuilds a tensor from something else than a storage"));
        };
        let (shape, strides) = (self.numbers(shape)?, self.numbers(strides)?);
        let wrong =
            || self.nonsense(&format!("has a tensor of shape {shape:?} that is not within its storage"));
        let offset = u64::try_from(offset).map_err(|_| wrong())?;
        let count =
            shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent)).ok_or_else(wrong)?;
        if shape.len() != strides.len() || count > storage.elements {
            // More elements than the storage has are copies of some: an expanded tensor, which nobody trains.
            return Err(wrong());
        }
        let last = shape.iter().zip(&strides).try_fold(offset, |last, (&extent, stride)| {
            extent.saturating_sub(1).checked_mul(*stride).and_then(|step| last.checked_add(step))
        });
        // The first element of an empty tensor may lie right behind the storage.
        let inside =
            last.is_some_and(
                |last| if count == 0 { offset <= storage.elements } else { last < storage.elements },
            );
        if !inside {
            return Err(wrong());
        }
        let extents =
            shape.iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>().map_err(|_| wrong())?;
        let mut expected = 1u64;
        let dense = shape.iter().zip(&strides).rev().all(|(&extent, &stride)| {
            let fits = extent == 1 || stride == expected;
            // An empty tensor may have any extents.
            expected = extent.wrapping_mul(expected);
            fits
        });
        let strides = (!dense && count > 0).then_some(strides);
        Ok(View { storage: *storage, offset, shape: extents, strides })
    }

    /// A tuple of numbers that are not negative: extents or strides.
    fn numbers(&self, id: Id) -> Parsed<Vec<u64>> {
        let Object::Tuple(items) = self.get(id) else {
            return Err(self.nonsense("has a shape that is no tuple"));
        };
        if items.len() > RANK_LIMIT {
            return Err(Problem::Limit { what: "extents of a tensor", limit: RANK_LIMIT });
        }
        let number = |&id: &Id| match self.get(id) {
            &Object::Int(value) => u64::try_from(value).ok(),
            _ => None,
        };
        items
            .iter()
            .map(number)
            .collect::<Option<_>>()
            .ok_or_else(|| self.nonsense("has a shape of no numbers"))
    }
}

#[cfg(test)]
mod tests;
