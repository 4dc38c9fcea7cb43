/** Makes nothing. */
export default () => {};
