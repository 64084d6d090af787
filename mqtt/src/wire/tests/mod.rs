//! The codec against tables and arbitrary bytes.
