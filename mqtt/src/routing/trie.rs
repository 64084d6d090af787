//! The filters with wildcards of a [`super::Routes`]: a persistent tree of levels.

use std::sync::Arc;

use smallvec::SmallVec;

use super::dest::Destinations;
use super::hamt::Hamt;
use super::hash::{SeededHash, hashed_levels};

/// The end of a filter's first few levels, and all that lies below it.
///
/// Walks are loops, and so is [`Drop`]: the tree is as deep as a filter has levels.
#[derive(Clone, Debug, Default)]
pub(super) struct TrieNode {
    /// Of the filter that ends here.
    here: Destinations,
    /// Of the filter that ends here with one more level, `#`.
    multi: Destinations,
    plus: Option<Arc<TrieNode>>,
    literals: Hamt<Arc<TrieNode>>,
}

impl TrieNode {
    /// What exactly this filter leads to; `None` when it is not in the tree.
    pub(super) fn get(&self, filter: &str, hasher: &SeededHash) -> Option<&Destinations> {
        let (path, multi) = split(filter);
        let mut node = self;
        for level in path {
            node = node.child(level, hasher)?;
        }
        let found = if multi { &node.multi } else { &node.here };
        (!found.is_empty()).then_some(found)
    }

    /// What this filter leads to, to be made other than empty by the caller. Copies the nodes
    /// on the way that other trees share.
    pub(super) fn get_mut(&mut self, filter: &str, hasher: &SeededHash) -> &mut Destinations {
        let (path, multi) = split(filter);
        let mut node = self;
        for level in path {
            let child = match level {
                "+" => node.plus.get_or_insert_default(),
                _ => node.literals.entry(hasher.of(level), level),
            };
            node = Arc::make_mut(child);
        }
        if multi { &mut node.multi } else { &mut node.here }
    }

    /// Takes a filter out that is in the tree, and the branch that led to nothing else.
    pub(super) fn remove(&mut self, filter: &str, hasher: &SeededHash) {
        let (path, multi) = split(filter);
        // How many levels down the last node stands that is needed for something else.
        let mut keep = 0;
        let mut depth = 0;
        let mut node = &*self;
        for level in path.clone() {
            let Some(child) = node.child(level, hasher) else { return };
            if node.serves_others(level) {
                keep = depth;
            }
            depth += 1;
            node = child;
        }
        let ends = usize::from(!node.here.is_empty()) + usize::from(!node.multi.is_empty());
        if ends > 1 || node.has_children() {
            keep = depth;
        }

        let mut node = self;
        for level in path.clone().take(keep) {
            let child = match level {
                "+" => node.plus.as_mut(),
                _ => {
                    let hash = hasher.of(level);
                    // It is there: the walk above went through it.
                    Some(node.literals.entry(hash, level))
                }
            };
            let Some(child) = child else { return };
            node = Arc::make_mut(child);
        }
        match path.clone().nth(keep) {
            Some("+") => node.plus = None,
            Some(level) => drop(node.literals.remove(hasher.of(level), level)),
            None if multi => node.multi = Destinations::default(),
            None => node.here = Destinations::default(),
        }
    }

    /// Calls `found` for every filter that matches the topic name.
    pub(super) fn matches(
        &self,
        topic: &str,
        hasher: &SeededHash,
        mut found: impl FnMut(&Destinations),
    ) {
        let levels = hashed_levels(topic, hasher);
        // At most one node more than levels waits here: each step down adds two, takes one.
        let mut waiting = SmallVec::<[(&TrieNode, usize); 24]>::new();
        waiting.push((self, 0));
        while let Some((node, depth)) = waiting.pop() {
            // Wildcards in the first level pass over `$` topics [MQTT-4.7.2-1].
            let wildcards = depth > 0 || !topic.starts_with('$');
            if wildcards {
                found(&node.multi);
            }
            let Some(level) = levels.get(depth) else {
                found(&node.here);
                continue;
            };
            if wildcards && let Some(plus) = &node.plus {
                waiting.push((plus, depth + 1));
            }
            if let Some(child) = node.literals.get(level.hash, level.text) {
                waiting.push((child, depth + 1));
            }
        }
    }

    fn child(&self, level: &str, hasher: &SeededHash) -> Option<&TrieNode> {
        match level {
            "+" => self.plus.as_deref(),
            _ => self.literals.get(hasher.of(level), level).map(|child| &**child),
        }
    }

    pub(super) fn has_children(&self) -> bool {
        self.plus.is_some() || !self.literals.is_empty()
    }

    /// Whether the node holds anything but its child at `level`.
    fn serves_others(&self, level: &str) -> bool {
        let other_children = match level {
            "+" => !self.literals.is_empty(),
            _ => self.plus.is_some() || !self.literals.is_single(),
        };
        other_children || !self.here.is_empty() || !self.multi.is_empty()
    }

    /// Cuts the children off and puts those into `pending` that nobody else may be holding.
    fn cut(&mut self, pending: &mut Vec<Arc<TrieNode>>) {
        pending.extend(self.plus.take());
        self.literals.for_each_unshared(|child| pending.push(child.clone()));
        self.literals = Hamt::default();
    }
}

impl Drop for TrieNode {
    // The drop that the compiler would write recurses once per level.
    fn drop(&mut self) {
        if !self.has_children() {
            return;
        }
        let mut pending = Vec::new();
        self.cut(&mut pending);
        while let Some(node) = pending.pop() {
            if let Some(mut last) = Arc::into_inner(node) {
                last.cut(&mut pending);
            }
        }
    }
}

/// A filter as the levels that are nodes, and whether `#` follows them.
fn split(filter: &str) -> (impl Iterator<Item = &str> + Clone, bool) {
    let (path, multi) = match filter.strip_suffix('#') {
        Some(before) => (before.strip_suffix('/'), true),
        None => (Some(filter), false),
    };
    (path.into_iter().flat_map(|path| path.split('/')), multi)
}
