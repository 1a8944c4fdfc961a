//! Lists one after the other, without an allocation for each: a table has millions of them.

/// Finished lists, and the elements of one that is being made.
#[derive(Debug)]
pub(super) struct Lists<T> {
    elements: Vec<T>,
    /// The end of each finished list.
    ends: Vec<usize>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { elements: Vec::new(), ends: Vec::new() }
    }
}

impl<T> Lists<T> {
    /// The number of finished lists.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The number of elements in finished lists.
    pub(super) fn elements(&self) -> usize {
        self.ends.last().copied().unwrap_or_default()
    }

    /// A finished list; empty if there is none.
    pub(super) fn get(&self, index: usize) -> &[T] {
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(index).and_then(|&end| self.elements.get(start..end)).unwrap_or_default()
    }

    /// The finished lists in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Adds an element to the list that is being made.
    pub(super) fn push(&mut self, element: T) {
        self.elements.push(element);
    }

    /// Finishes the list that is being made.
    pub(super) fn finish(&mut self) {
        self.ends.push(self.elements.len());
    }

    /// Removes the last finished list.
    pub(super) fn pop(&mut self) {
        self.ends.pop();
        self.elements.truncate(self.elements());
    }
}

impl<T: Copy + Ord> Lists<T> {
    /// Sorts the list that is being made. `merge` returns true if it has added the second of two neighbours
    /// to the first; the second is removed then.
    pub(super) fn sort_and_merge(&mut self, mut merge: impl FnMut(&mut T, &T) -> bool) {
        let start = self.elements();
        self.elements[start..].sort_unstable();
        let mut end = start;
        for at in start..self.elements.len() {
            let next = self.elements[at];
            if end == start || !merge(&mut self.elements[end - 1], &next) {
                self.elements[end] = next;
                end += 1;
            }
        }
        self.elements.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_merged_and_removed() {
        let mut lists = Lists::default();
        for list in [&[(3, 1), (1, 1), (3, 4)][..], &[], &[(2, 1)]] {
            list.iter().for_each(|&element| lists.push(element));
            lists.sort_and_merge(|kept, next| {
                let is_same = kept.0 == next.0;
                kept.1 += if is_same { next.1 } else { 0 };
                is_same
            });
            lists.finish();
        }
        assert_eq!(lists.iter().collect::<Vec<_>>(), [&[(1, 1), (3, 5)][..], &[], &[(2, 1)]]);
        assert_eq!((lists.len(), lists.elements(), lists.get(3)), (3, 3, &[][..]));
        lists.pop();
        assert_eq!((lists.len(), lists.elements()), (2, 2));
        lists.push((9, 9));
        lists.finish();
        assert_eq!(lists.get(2), [(9, 9)]);
    }
}
